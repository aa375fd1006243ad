/**
 * A block of code with its head from the first line on: language, wrapping and Copy. It is coloured once it is whole, and
 * folded beyond 40 lines, also while it grows: nothing jumps at the end.
 */

import { useState } from "preact/hooks";
import { CopyButton } from "../views/copy-button";
import { type Run, useLaidOut } from "./workshop";
import { Button } from "../views/button";

const MOST_LINES = 40;

interface Props {
  text: string;
  language: string;
  /** More of it will come. */
  open: boolean;
}

export function CodeBlock({ text, language, open }: Props) {
  const runs = useLaidOut("highlight", open || !language ? null : { text, language });
  const [wraps, setWraps] = useState(false);
  const [whole, setWhole] = useState(false);
  const lines = text.replace(/\n$/, "").split("\n").length;
  const long = lines > MOST_LINES;
  return (
    <div class={`code${wraps ? " wraps" : ""}${long && !whole ? " folded" : ""}`} dir="ltr" data-testid="code-block">
      <div class="code-head">
        <span class="code-language">{language}</span>
        <Button kind="quiet copy" aria-pressed={wraps} testId="wrap-code" onClick={() => setWraps(!wraps)}>
          Wrap lines
        </Button>
        <CopyButton label="Copy" testId="copy-code" text={() => text} />
      </div>
      <pre tabIndex={0}>
        <code class={language ? `language-${language}` : undefined}>{runs ? runs.map(coloured) : text}</code>
      </pre>
      {long && (
        <Button kind="quiet code-more" aria-expanded={whole} testId="unfold-code" onClick={() => setWhole(!whole)}>
          {whole ? "Show fewer lines" : `Show all ${lines} lines`}
        </Button>
      )}
    </div>
  );
}

const coloured = ([text, scope]: Run) => (scope ? <span class={scope}>{text}</span> : text);
