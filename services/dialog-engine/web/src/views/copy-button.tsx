/** A button that copies a text and shows that for a moment; nothing where the browser offers no clipboard. */

import { useState } from "preact/hooks";
import { Icon } from "./icon";

const SHOWN_MS = 1_500;

export function CopyButton({ label, testId, text }: { label: string; testId: string; text: () => string }) {
  const [word, setWord] = useState(label);
  if (!navigator.clipboard) return null;
  const copy = async () => {
    const copied = await navigator.clipboard.writeText(text()).then(
      () => true,
      () => false,
    );
    setWord(copied ? "Copied" : "Could not copy");
    setTimeout(() => setWord(label), SHOWN_MS);
  };
  return (
    <button type="button" class="quiet copy" data-testid={testId} onClick={copy}>
      <Icon name="copy" />
      <span>{word}</span>
    </button>
  );
}
