/** The notice of a failed request, with the texts of its problem document; or of something else that is to be known. */

import { ApiError } from "../core/api";
import { inWords, sentence } from "../core/words";
import type { Page } from "../page/page";
import type { Notice as Shown } from "../page/notices";
import { Button } from "./button";
import { Icon } from "./icon";

export function Notice({ page: { notices } }: { page: Page }) {
  const shown = notices.shown.value;
  const said = typeof shown?.what === "string";
  return (
    <div class={said ? "notice said" : "notice"} role="alert" data-testid="notice" hidden={shown === null}>
      {shown && <Content {...shown} dismiss={() => notices.dismiss()} />}
    </div>
  );
}

function Content({ what, action, dismiss }: Shown & { dismiss: () => void }) {
  const error = what instanceof ApiError ? what : null;
  const said = typeof what === "string" ? what : `The page failed. Reload it: what you wrote is kept. (${what})`;
  // What the engine says of the fields to blame stands below, without their names.
  const fields = error && error.code !== "UNAUTHORIZED" ? error.fields : [];
  return (
    <>
      <Icon name="alert" />
      <div class="notice-text" data-code={error?.code ?? ""}>
        <p class="notice-title">{error ? inWords(error) : said}</p>
        {fields.map(({ message }, index) => (
          <p key={index} data-testid="notice-field">{sentence(message)}</p>
        ))}
      </div>
      {action && (
        <Button kind="outlined" testId="notice-action" onClick={action.act}>{action.word}</Button>
      )}
      <Button aria-label="Dismiss" testId="notice-dismiss" onClick={dismiss}>
        <Icon name="cross" />
      </Button>
    </>
  );
}
