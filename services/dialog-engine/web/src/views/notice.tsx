/** The notice of a failed request, with the texts of its problem document; or of something else that is to be known. */

import { ApiError } from "../core/api";
import { inWords, sentence } from "../core/words";
import type { Page } from "../page/page";
import { Button } from "./button";
import { Icon } from "./icon";

export function Notice({ page }: { page: Page }) {
  const { what = "", action } = page.notices.shown.value ?? {};
  const error = what instanceof ApiError ? what : null;
  const said = typeof what === "string" ? what : `The page failed. Reload it: what you wrote is kept. (${what})`;
  // What the engine says of the fields to blame stands below, without their names.
  const fields = error && error.code !== "UNAUTHORIZED" ? error.fields : [];
  const dismiss = () => {
    page.notices.dismiss();
    page.keepFocus();
  };
  return (
    <div class={typeof what === "string" ? "notice said" : "notice"} role="alert" data-testid="notice" hidden={!what}>
      <Icon name="alert" />
      <div class="notice-text" data-code={error?.code ?? ""}>
        <p class="notice-title">{error ? inWords(error) : said}</p>
        {fields.map(({ message }, index) => <p key={index} data-testid="notice-field">{sentence(message)}</p>)}
      </div>
      {action && <Button kind="outlined" testId="notice-action" onClick={action.act}>{action.word}</Button>}
      <Button aria-label="Dismiss" testId="notice-dismiss" onClick={dismiss}><Icon name="cross" /></Button>
    </div>
  );
}
