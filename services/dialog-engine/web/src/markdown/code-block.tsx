/** A block of code with its language and Copy from the first line on; coloured once it is whole. */

import { CopyButton } from "../views/copy-button";
import { useLaidOut } from "./laid-out";
import type { Run } from "./workshop";

interface Props {
  text: string;
  language: string;
  /** More of it will come. */
  open: boolean;
}

export function CodeBlock({ text, language, open }: Props) {
  const runs = useLaidOut("highlight", open || !language ? null : { text, language });
  return (
    <div class="code" dir="ltr" data-testid="code-block">
      <div class="code-head">
        <span>{language}</span>
        <CopyButton label="Copy" testId="copy-code" text={() => text} />
      </div>
      <pre tabIndex={0}>
        <code class={language ? `language-${language}` : undefined}>{runs ? runs.map(coloured) : text}</code>
      </pre>
    </div>
  );
}

const coloured = ([text, scope]: Run) => (scope ? <span class={scope}>{text}</span> : text);
