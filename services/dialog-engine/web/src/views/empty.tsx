/** The first thing seen: what the page is for, and things to try. */

import type { Page } from "../page/page";
import { Button } from "./button";
import { Icon } from "./icon";

const SUGGESTIONS = [
  "What time is it in Tokyo and in Paris?",
  "What is 17 * 23 + 4?",
  "Run a slow job for 5 seconds",
  "Call the failing tool",
];

export function Empty({ page }: { page: Page }) {
  const { items, phase } = page.state.value;
  const ask = (text: string) => {
    page.focusComposer();
    page.send(text);
  };
  return (
    <section class="empty" data-testid="empty-state" aria-labelledby="empty-title" hidden={items.length > 0 || phase !== "idle"}>
      <h2 id="empty-title">What would you like to try?</h2>
      <p>Ask something. When a tool is needed, you see each call here as it happens.</p>
      <p class="scripted" data-testid="scripted-banner" hidden={!page.about.value?.model.scripted}>
        <Icon name="alert" />
        <span>
          <strong>Scripted demo model.</strong> The answers come from a script, not from a language model. The tool calls
          are real.
        </span>
      </p>
      <div class="suggestions">
        {SUGGESTIONS.map((text) => (
          <Button key={text} kind="outlined" testId="suggestion" onClick={() => ask(text)}>{text}</Button>
        ))}
      </div>
    </section>
  );
}
