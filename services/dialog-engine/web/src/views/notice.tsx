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
  const { headline, code, fields } = shownOf(what);
  return (
    <>
      <Icon name="alert" />
      <div class="notice-text" data-code={code}>
        <p class="notice-title">{headline}</p>
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

/** The words of an error, and below them what the engine says of the fields to blame, without their names. */
function shownOf(error: unknown): { headline: string; code: string; fields: ApiError["fields"] } {
  if (typeof error === "string") return { headline: error, code: "", fields: [] };
  if (!(error instanceof ApiError)) return { headline: `The page failed. Reload it: what you wrote is kept. (${error})`, code: "", fields: [] };
  const { code, fields } = error;
  return { headline: inWords(error), code, fields: code === "UNAUTHORIZED" ? [] : fields };
}
