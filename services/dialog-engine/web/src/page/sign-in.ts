/** A sign-in leaves the page, and comes back to the same conversation with what was written. */

import { wordsOf } from "../core/words";
import { ofTab, keep, kept } from "./storage";

const STORED = "callstream.return";
const NOT_COMPLETED = "The sign-in was not completed, so you are not signed in. Nothing was lost.";

/** Leaves for the provider. `draft` is what was written before the page knew its user. */
export function leaveToSignIn(draft: string): void {
  keep(ofTab, STORED, JSON.stringify({ address: location.hash, draft }));
  location.assign("/sign-in");
}

/** After a sign-in: restores the address, and returns what was written and why the sign-in was refused, if it was. */
export function comeBack(): { draft: string; refused: string } {
  const { address = "", draft = "" } = JSON.parse(kept(ofTab, STORED) ?? "{}") as { address?: string; draft?: string };
  keep(ofTab, STORED, "");
  const code = new URLSearchParams(location.search).get("sign-in-refused");
  const here = location.hash || address;
  if (code !== null || here !== location.hash) history.replaceState(null, "", location.pathname + here);
  const why = code === "UNAUTHORIZED" ? "" : (code ?? ""); // words of their own: no key was tried yet
  return { draft, refused: code === null ? "" : wordsOf(why, NOT_COMPLETED) };
}
