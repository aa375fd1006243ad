/** A button with its test id. `kind` is how it looks: quiet, outlined or primary, and more classes. */

import type { ButtonHTMLAttributes, Ref } from "preact";

interface Props extends ButtonHTMLAttributes<HTMLButtonElement> {
  testId?: string;
  kind?: string;
  ref?: Ref<HTMLButtonElement>;
}

export const Button = ({ testId, kind = "quiet", ...attributes }: Props) => (
  <button type="button" class={kind} data-testid={testId} {...attributes} />
);
