/** The notice of a failed request, with the texts of its problem document; or of something else that is to be known. */

import { ApiError, type FieldProblem } from "../core/api";
import { inWords as wordsOf } from "../core/words";
import type { Page } from "../page/page";
import type { Notice as Shown } from "../page/notices";
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
  const { headline, code, fields } = inWords(what);
  return (
    <>
      <Icon name="alert" />
      <div class="notice-text">
        <p class="notice-title">
          <span>{headline}</span>
          {code && <code class="chip bad">{code}</code>}
        </p>
        {fields.length > 0 && code !== "UNAUTHORIZED" && (
          <ul>
            {fields.map(({ field, message }, index) => (
              <li key={index} data-testid="notice-field">
                <code>{field}</code> {message}
              </li>
            ))}
          </ul>
        )}
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

/** When fields of a request are to blame the headline is the title, with the fields below. */
function inWords(error: unknown): { headline: string; code: string; fields: FieldProblem[] } {
  if (typeof error === "string") return { headline: error, code: "", fields: [] };
  if (!(error instanceof ApiError)) return { headline: `The page failed: ${error}`, code: "", fields: [] };
  const { title, code, fields } = error;
  return { headline: fields.length && code !== "UNAUTHORIZED" ? title : wordsOf(error), code, fields };
}
