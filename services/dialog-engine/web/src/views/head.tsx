/** The line above the conversation: its title, the model, what can be chosen, and the theme. */

import { useEffect, useState } from "preact/hooks";
import type { Picker } from "../page/choices";
import type { Page } from "../page/page";
import { isDark, switchTheme, systemIsDark } from "../page/theme";
import { Button } from "./button";
import { Icon } from "./icon";

export function Head({ page }: { page: Page }) {
  const about = page.about.value;
  const scripted = about?.model.scripted ?? false;
  const several = page.choices.model.options.value.length > 1;
  const open = page.drawerOpen.value;
  return (
    <header class="head">
      <Button
        kind="quiet square" id="sidebar-toggle" testId="sidebar-toggle" aria-label="Conversations"
        aria-controls="sidebar" aria-expanded={open} onClick={() => (page.drawerOpen.value = !open)}
      >
        <Icon name="menu" />
      </Button>
      <h1 id="title" dir="auto">{page.title.value || "New conversation"}</h1>
      <span class={scripted ? "chip scripted" : "chip"} data-testid="model-label" hidden={!about || (several && !scripted)}>
        {about && (scripted ? "Scripted demo model" : about.model.label || about.model.id)}
      </span>
      <Select picker={page.choices.model} id="model-choice" label="Model" />
      <Select picker={page.choices.toolMode} id="tool-mode-choice" label="How tools are called" />
      <ThemeButton />
    </header>
  );
}

function Select({ picker, id, label }: { picker: Picker; id: string; label: string }) {
  const options = picker.options.value;
  return (
    <select
      class="chip" id={id} data-testid={id} aria-label={label} autocomplete="off" hidden={options.length < 2}
      value={picker.chosen.value} onChange={({ currentTarget }) => picker.pick(currentTarget.value)}
    >
      {options.map(([value, name]) => <option key={value} value={value}>{name}</option>)}
    </select>
  );
}

function ThemeButton() {
  const [dark, setDark] = useState(isDark);
  const look = () => setDark(isDark());
  useEffect(() => systemIsDark().addEventListener("change", look), []);
  const change = () => {
    switchTheme();
    look();
  };
  return (
    <Button
      kind="quiet square" id="theme-toggle" testId="theme-toggle"
      aria-label={dark ? "Use the light theme" : "Use the dark theme"} onClick={change}
    >
      <Icon name="contrast" />
    </Button>
  );
}
