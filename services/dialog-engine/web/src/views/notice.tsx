/** The notice of a failed request, with the texts of its problem document. */

import { ApiError, type FieldProblem } from "../core/api";
import type { Page } from "../page/page";
import { Icon } from "./icon";

export function Notice({ page: { notice } }: { page: Page }) {
  const error = notice.value;
  return (
    <div class="notice" role="alert" data-testid="notice" hidden={error === null}>
      {error !== null && <Content error={error} dismiss={() => (notice.value = null)} />}
    </div>
  );
}

function Content({ error, dismiss }: { error: unknown; dismiss: () => void }) {
  const { headline, code, fields } = inWords(error);
  return (
    <>
      <Icon name="alert" />
      <div class="notice-text">
        <p class="notice-title">
          <span>{headline}</span>
          {code && <code class="chip bad">{code}</code>}
        </p>
        {fields.length > 0 && (
          <ul>
            {fields.map(({ field, message }, index) => (
              <li key={index} data-testid="notice-field">
                <code>{field}</code> {message}
              </li>
            ))}
          </ul>
        )}
      </div>
      <button type="button" class="quiet" aria-label="Dismiss" data-testid="notice-dismiss" onClick={dismiss}>
        <Icon name="cross" />
      </button>
    </>
  );
}

/** The detail is the headline; when fields are to blame it is the title, with the fields below. */
function inWords(error: unknown): { headline: string; code: string; fields: FieldProblem[] } {
  if (!(error instanceof ApiError)) return { headline: `The page failed: ${error}`, code: "", fields: [] };
  const { title, detail, code, fields } = error;
  return { headline: fields.length ? title : detail || title, code, fields };
}
