/** A button that copies a text and shows that for a moment; nothing where the browser offers no clipboard. */

import { useState } from "preact/hooks";
import { Icon } from "./icon";

const SHOWN_MS = 1_500;

interface Props {
  label: string;
  testId: string;
  text: () => string;
  /** The same as elements, for programs that take formatted text. */
  rich?: () => Element[];
  /** Only the icon is seen; the label is its name. */
  small?: boolean;
}

export function CopyButton({ label, testId, text, rich, small = false }: Props) {
  const [word, setWord] = useState(label);
  if (!navigator.clipboard) return null;
  const copy = async () => {
    setWord(await written(text(), rich?.()).then(() => "Copied", () => "Could not copy"));
    setTimeout(() => setWord(label), SHOWN_MS);
  };
  return (
    <button type="button" class="quiet copy" data-testid={testId} onClick={copy}>
      <Icon name={word === "Copied" ? "check" : "copy"} />
      <span class={small ? "unseen" : undefined}>{word}</span>
    </button>
  );
}

function written(text: string, rich: Element[] | undefined): Promise<void> {
  if (!rich?.length || typeof ClipboardItem === "undefined") return navigator.clipboard.writeText(text);
  const blob = (type: string, content: string) => [type, new Blob([content], { type })] as const;
  const types = [blob("text/plain", text), blob("text/html", rich.map(markup).join(""))];
  return navigator.clipboard.write([new ClipboardItem(Object.fromEntries(types))]);
}

/** An element as text of XHTML, without the controls in it. */
function markup(element: Element): string {
  const copied = element.cloneNode(true) as Element;
  for (const control of copied.querySelectorAll("button, .code-head")) control.remove();
  return new XMLSerializer().serializeToString(copied);
}
