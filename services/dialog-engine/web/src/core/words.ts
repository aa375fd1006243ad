/** What went wrong with a request, in words for a person: what happened, whether anything was lost, and what to do. */

import type { ApiError } from "./api";

const WORDS = new Map([
  ["UNREACHABLE", "The server cannot be reached. Nothing is lost."],
  ["STORAGE_UNAVAILABLE", "The server cannot read or store conversations now. What was stored is safe."],
  ["ENGINE_STOPPING", "The server is being restarted. Try again in a moment."],
  ["UNAUTHORIZED", "You are not signed in. What you wrote is kept: sign in, or use a key, to go on."],
  ["CREDENTIAL_REVOKED", "Your key was withdrawn. What you wrote is kept: use another one to go on."],
  ["FORBIDDEN", "You are not allowed to do this. Ask the people who run this server."],
  ["SESSION_NOT_FOUND", "This conversation is not there: it was deleted, or it is not yours."],
  ["TURN_NOT_FOUND", "This answer is not there any more: its conversation was deleted."],
  ["INTERNAL_ERROR", "The server made a mistake, which is written in its log. Try again."],
]);
/** Requests that send a message, whose text goes back into the message box when they fail. */
const SENDS = /^POST \/v1\/(chat|sessions)$/;

export function inWords({ code, detail, title, request }: ApiError): string {
  const what = WORDS.get(code) ?? (detail || title);
  return SENDS.test(request) ? `${what.replace(/[^.!?]$/, "$&.")} Your message was not sent: it is in the message box again.` : what;
}
