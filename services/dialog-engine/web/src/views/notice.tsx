/** The notice of a failed request, with the texts of its problem document; or of something else that is to be known. */

import { ApiError, type FieldProblem } from "../core/api";
import { inWords as wordsOf } from "../core/words";
import type { Page } from "../page/page";
import type { Notice as Shown } from "../page/notices";
import { Icon } from "./icon";

export function Notice({ page }: { page: Page }) {
  const { notices } = page;
  const dismiss = () => {
    notices.dismiss();
    page.keepFocus();
  };
  const shown = notices.shown.value;
  const said = typeof shown?.what === "string";
  return (
    <div class={said ? "notice said" : "notice"} role="alert" data-testid="notice" hidden={shown === null}>
      {shown && <Content {...shown} dismiss={dismiss} />}
    </div>
  );
}

function Content({ what, action, dismiss }: Shown & { dismiss: () => void }) {
  const { headline, code, fields } = inWords(what);
  return (
    <>
      <Icon name="alert" />
      <div class="notice-text" data-code={code}>
        <p class="notice-title">{headline}</p>
        {fields.map(({ message }, index) => (
          <p key={index} data-testid="notice-field">
            {sentence(message)}
          </p>
        ))}
      </div>
      {action && (
        <button type="button" class="outlined" data-testid="notice-action" onClick={action.act}>
          {action.word}
        </button>
      )}
      <button type="button" class="quiet" aria-label="Dismiss" data-testid="notice-dismiss" onClick={dismiss}>
        <Icon name="cross" />
      </button>
    </>
  );
}

/** The words of an error, and below them what the engine says of the fields to blame, without their names. */
function inWords(error: unknown): { headline: string; code: string; fields: FieldProblem[] } {
  if (typeof error === "string") return { headline: error, code: "", fields: [] };
  if (!(error instanceof ApiError)) return { headline: `The page failed. Reload it: what you wrote is kept. (${error})`, code: "", fields: [] };
  const { code, fields } = error;
  return { headline: wordsOf(error), code, fields: code === "UNAUTHORIZED" ? [] : fields };
}

const sentence = (text: string): string => `${text.charAt(0).toUpperCase()}${text.slice(1)}`.replace(/[^.!?]$/, "$&.");
