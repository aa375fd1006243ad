/**
 * What went wrong, in words for a person: what happened, whether anything was lost, and what to do. All codes of the API
 * have their words here (tests/unit/test_page.py).
 */

import type { ApiError } from "./api";

const AGAIN = "Try again in a moment.";
const KEPT = "What was done so far is kept.";
const OPERATORS = "Ask the people who run this server.";

/** By code, for a request or an answer that failed. */
const WORDS = new Map([
  ["UNREACHABLE", "The server cannot be reached. Nothing is lost."],
  ["STORAGE_UNAVAILABLE", `The server cannot read or store conversations now. What was stored is safe. ${AGAIN}`],
  ["INTERNAL_ERROR", `The server made a mistake, which is written in its log. ${KEPT} ${AGAIN}`],
  ["CONFIGURATION", `The server is not set up correctly. ${OPERATORS}`],
  ["NOT_FOUND", "The server does not offer this. Reload the page: it may be of another release."],
  ["HOST_NOT_ALLOWED", `The server does not answer at this address. ${OPERATORS}`],
  ["ORIGIN_NOT_ALLOWED", `The server takes no requests from this page. ${OPERATORS}`],
  ["INVALID_REQUEST", "The server did not understand the request. Nothing was changed. Reload the page, and try again."],
  ["INVALID_JSON", "The server did not understand the request. Nothing was changed. Reload the page, and try again."],
  ["UNSUPPORTED_MEDIA_TYPE", "The server takes no such request. Nothing was changed. Reload the page, and try again."],
  ["INVALID_CURSOR", "The page asked for a place that the server does not know. Nothing is lost. Reload the page."],
  ["BODY_TOO_LARGE", "This is too large for the server. Nothing was changed. Make it shorter."],
  ["CLIENT_GONE", `The connection ended before the answer. ${AGAIN}`],
  ["UNAUTHORIZED", "You are not signed in. What you wrote is kept: sign in, or use a key, to go on."],
  ["CREDENTIAL_REVOKED", "Your key was withdrawn. What you wrote is kept: use another one to go on."],
  ["TOO_MANY_ATTEMPTS", "There were too many attempts to sign in. Wait a minute, and try again."],
  ["IDENTITY_PROVIDER_UNAVAILABLE", "The identity provider cannot be reached now. Nothing is lost. Wait a moment, and sign in again."],
  ["FORBIDDEN", `You are not allowed to do this. ${OPERATORS}`],
  ["LIMIT_EXCEEDED", "You have reached a limit of this server. Nothing is lost. Wait a while, and try again."],
  ["SESSION_NOT_FOUND", "This conversation is not there: it was deleted, or it is not yours."],
  ["TURN_NOT_FOUND", "This answer is not there any more: its conversation was deleted."],
  ["CONTENT_NOT_FOUND", "This part of a result is not stored any more."],
  ["MESSAGE_TOO_LONG", "The message is too long."],
  ["CHOICE_NOT_ALLOWED", "What was chosen for this message is not offered any more. Choose again."],
  ["TURN_RUNNING", "An answer is being written in this conversation. Wait for its end, or stop it."],
  ["TURN_STARTED", "This message is being answered already. Stop its answer, if it is not wanted."],
  ["SENT_BEFORE", "This message was sent before. Look for its answer in the conversation."],
  ["CLIENT_MESSAGE_REUSED", "Another message was sent under the same number. Reload the page, and send it again."],
  ["IDEMPOTENCY_KEY_REUSED", "Another request was sent under the same key. Reload the page, and send it again."],
  ["TURN_GOES_ON", "This answer is still being written. Reload the page to read it."],
  ["MODEL_NOT_FOUND", "This model is not offered here. Choose another one."],
  ["TOO_MANY_BRANCHES", "This question has as many versions as there can be. Go on from one of them."],
  ["TOO_MANY_ADDED", "So much was added to this conversation that no more may be, before a question or at all."],
  ["TURN_CRASHES", `The server stopped several times while it wrote this answer, and has given it up. ${KEPT}`],
  ["TURN_PARKED", "This answer waits for you. Decide about what it asks for, and it goes on."],
  ["TURN_FENCED", `Another engine writes this answer now. ${KEPT} Reload the page.`],
  ["APPROVAL_NOT_TAKEN", "The decision was not taken. The call was not run. Reload the page to see its state."],
  ["APPROVAL_NOT_FOUND", "This call is not waiting for approval any more. Reload the page to see its state."],
  ["AMBIGUOUS_CALL", "Several calls have this name. Nothing was decided. Reload the page, and decide on its card."],
  ["APPROVAL_DECIDED", "This was already decided, here or on another device. That decision stays."],
  ["APPROVAL_EXPIRED", "There was no decision in time. The call was not run: ask for it again."],
  ["APPROVAL_STALE", "The arguments have changed since they were shown. Nothing was decided. Read them again."],
  ["TOOL_CHANGED", "The tool has changed since the call was shown. The call was not run: ask for it again."],
  ["SESSION_NAMED", "Another request has begun this conversation at the same moment. Send the message again."],
  ["CLIENT_TOOL_REFUSED", "A tool that came with the message cannot be offered. Nothing was sent."],
  ["CLIENT_TOOLS_NOT_NOW", "The server is being updated, and takes no tools of a client. Send the message again later."],
  ["CLIENT_CALL_NOT_FOUND", "This call does not wait for a result of a client. Reload the page to see its state."],
  ["CLIENT_CALL_ANSWERED", "This call has another result already, or waits for none any more."],
  ["QUESTION_CLOSED", "The answer was not taken. Reload the page to see the state of the question."],
  ["QUESTION_NOT_FOUND", "This question is not there any more. Reload the page to see its state."],
  ["QUESTION_ANSWERED", "This question was already answered, here or on another device, or is over."],
  ["ANSWER_REFUSED", "The answer does not fit the form. Nothing was sent. Change it."],
  ["INVALID_ARGUMENTS", "These arguments do not fit the tool. Nothing was run. Change them."],
  ["MODEL_ERROR", `The model failed. ${KEPT} Ask again.`],
  ["MODEL_UNAVAILABLE", `The model cannot be reached. ${KEPT} Ask again in a moment.`],
  ["MODEL_OVERLOADED", `The model has too much to do. ${KEPT} Ask again in a moment.`],
  ["MODEL_RATE_LIMITED", `The model takes no more requests for now. ${KEPT} Wait a minute, and ask again.`],
  ["MODEL_QUOTA", `The budget for the model is used up. ${KEPT} ${OPERATORS}`],
  ["MODEL_AUTHENTICATION", `The model does not accept the key of this server. ${KEPT} ${OPERATORS}`],
  ["MODEL_REQUEST", `The model refused the request. ${KEPT} Ask in other words, or another model.`],
  ["MODEL_CONTEXT_LENGTH", `This is too long for the model. ${KEPT} Begin a new conversation, or ask for less.`],
  ["MODEL_TOOLS_REJECTED", `The model takes no tools. ${KEPT} Choose another model, or another way of calling tools.`],
  ["MODEL_EMPTY", `The model answered nothing, twice. ${KEPT} Ask in other words.`],
  ["MODEL_STREAM_BROKEN", `The model's answer broke off. ${KEPT} Ask again.`],
]);

const NOT_RUN = "It was not run.";
const FAILED = "It ran and failed: a part of it may have taken effect.";

/** By code, for a call that has not succeeded: what it has done. */
const EFFECTS = new Map([
  ["TOOL_NOT_FOUND", NOT_RUN],
  ["RESOURCE_NOT_FOUND", NOT_RUN],
  ["PROMPT_NOT_FOUND", NOT_RUN],
  ["INVALID_ARGUMENTS", NOT_RUN],
  ["NOT_APPROVED", ""],
  ["APPROVAL_REQUIRED", NOT_RUN],
  ["REPEATED", NOT_RUN],
  ["DISABLED", `${NOT_RUN} ${OPERATORS}`],
  ["OVERLOADED", `${NOT_RUN} ${AGAIN}`],
  ["INPUT_REFUSED", "Its server wanted something that nobody here is asked for, and did not go on."],
  ["INPUT_EXPIRED", "The question of its server is over, and it did not go on: ask for it again."],
  ["NETWORK_ERROR", "Its server could not be reached, so it was not run, or may be asked for again safely."],
  ["TOOL_EXECUTION_FAILED", FAILED],
  ["PERMISSION_DENIED", FAILED],
  ["MODEL_ERROR", FAILED],
  ["UNKNOWN_ERROR", FAILED],
  ["TIMEOUT", "It did not end in time: it may have taken effect."],
  ["CANCELLED", ""],
  ["OUTCOME_UNKNOWN", ""],
  ["LOST", ""],
]);

/** The request that sends a message, whose text goes back into the message box when it fails. */
const SENDS = "POST /v1/chat";

export function inWords({ code, message, request }: ApiError): string {
  const what = WORDS.get(code) ?? message;
  return request === SENDS ? `${sentence(what)} Your message was not sent: it is in the message box again.` : what;
}

/** A text of a server as a sentence: with a capital, and with a full stop unless it ends with a mark of its own. */
export const sentence = (text: string): string =>
  `${text.charAt(0).toUpperCase()}${text.slice(1)}`.replace(/[\w)\]"'”»]$/, "$&.");

/** The words of a code, or else these. */
export const wordsOf = (code: string, others: string): string => WORDS.get(code) ?? others;

/** What a call with this code has done; empty where its status says it. */
export const effectOf = (code: string): string => EFFECTS.get(code) ?? "";
