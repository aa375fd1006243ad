/** The engine's HTTP interface. Every failure is an ApiError that can be shown as it is. */

import type { About, Choice, History, MadeCall, Offer, Session } from "./types";

const SIGN_IN = "/sign-in";

/** A problem document of the server. */
interface Problem {
  title?: string;
  detail?: unknown;
  code?: string;
  errors?: unknown;
  turnId?: string;
  signIn?: string;
}

export interface FieldProblem {
  field: string;
  message: string;
}

/** A failed request: the server's problem document, or the reason why there is none (`status` 0: not reached). */
export class ApiError extends Error {
  status: number;
  title: string;
  detail: string;
  code: string;
  fields: FieldProblem[];
  turnId: string | null;
  signIn: boolean;
  /** Method and path of what was asked. */
  request: string;

  constructor(status: number, request = "", { title, detail, code, errors, turnId, signIn }: Problem = {}) {
    super(typeof detail === "string" ? detail : title || "The request failed.");
    this.status = status;
    this.title = title || `The server answered ${status}.`;
    this.detail = typeof detail === "string" ? detail : "";
    this.code = code || "";
    this.fields = Array.isArray(errors) ? errors : [];
    this.turnId = turnId || null;
    this.signIn = signIn === SIGN_IN;
    this.request = request;
  }
}

export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";

const UNREACHABLE = { title: "The server cannot be reached.", code: "UNREACHABLE" };

interface Options {
  method?: string;
  body?: object;
  headers?: Record<string, string>;
  accept?: string;
  signal?: AbortSignal | undefined;
}

/** Where the key of requests comes from. */
export interface KeySource {
  current(): string | null;
  /** The engine has not accepted this key: it is not the current one any more. */
  rejected(key: string): void;
  /** Asks the user for a key, or to sign in where people can; true once there is a key. */
  ask(signIn: boolean): Promise<boolean>;
}

export class Api {
  #keys: KeySource;
  #answered: (request: string) => void;

  /** `answered(request)` is called with the method and path of each request that succeeds. */
  constructor(keys: KeySource, answered: (request: string) => void = () => {}) {
    this.#keys = keys;
    this.#answered = answered;
  }

  /** Asks the engine once whether it accepts this key. Throws the ApiError of a refusal. */
  async check(key: string): Promise<void> {
    const headers = { Accept: "application/json", Authorization: `Bearer ${key}` };
    const response = await reach("GET /v1/me", "/v1/me", { headers, cache: "no-store", redirect: "error" });
    if (!response.ok) throw await failure(response, "GET /v1/me");
  }

  about = () => this.#json<About>("/v1/about");
  me = () => this.#json<{ subject: string; name: string; roles: string[] }>("/v1/me");
  signOut = () => this.#request("/sign-out", { method: "POST" });
  models = () => this.#json<Offer>("/v1/models");

  /** A page of conversations: those before the cursor, or the newest, as many as `limit` if that is given. */
  sessions = ({ before, limit }: { before?: string | null; limit?: number } = {}) => {
    const query = before ? `?before=${encodeURIComponent(before)}` : limit ? `?limit=${limit}` : "";
    return this.#json<{ sessions: Session[]; nextCursor: string | null }>(`/v1/sessions${query}`);
  };

  createSession = () => this.#json<{ sessionId: string }>("/v1/sessions", { method: "POST" });

  messages = (sessionId: string, signal?: AbortSignal, before?: string) => {
    const url = `/v1/sessions/${encodeURIComponent(sessionId)}/messages`;
    return this.#json<History>(before ? `${url}?before=${encodeURIComponent(before)}` : url, { signal });
  };

  /** What waits in a conversation and which turn runs in it, with the newest message only. */
  newest = (sessionId: string) =>
    this.#json<History>(`/v1/sessions/${encodeURIComponent(sessionId)}/messages?limit=1`);

  /** Lets a message wait for the turns before it. `name` is the same when it is sent again: it is accepted once. */
  queue = (sessionId: string, message: string, choice: Choice, name: string) =>
    this.#json(`/v1/sessions/${encodeURIComponent(sessionId)}/turns`, {
      method: "POST",
      body: { message, onBusy: "queue", clientMessageId: name, ...choice },
    });

  edit = (turnId: string, message: string) =>
    this.#json(`/v1/turns/${encodeURIComponent(turnId)}`, { method: "PATCH", body: { message } });

  withdraw = (turnId: string) => this.#json(`/v1/turns/${encodeURIComponent(turnId)}`, { method: "DELETE" });

  /** Sends a message that waits before all others; with `stop` the running turn is stopped for it. */
  sendNow = (turnId: string, stop: boolean) =>
    this.#json(`/v1/turns/${encodeURIComponent(turnId)}/send${stop ? "?stop=true" : ""}`, { method: "POST" });

  /** `stop`: its running turn is stopped first; otherwise that is a reason to refuse. */
  deleteSession = (sessionId: string, stop: boolean) =>
    this.#request(`/v1/sessions/${encodeURIComponent(sessionId)}${stop ? "?stop=true" : ""}`, { method: "DELETE" });

  turn = (turnId: string, signal: AbortSignal) =>
    this.#json<{ status: string; parentTurnId?: string }>(`/v1/turns/${encodeURIComponent(turnId)}`, { signal });

  /** The calls of a turn, and of those after it, whose effects stay when another answer is shown in its place. */
  effects = (turnId: string) =>
    this.#json<{ calls: MadeCall[]; more: boolean }>(`/v1/turns/${encodeURIComponent(turnId)}/effects`);

  /** Shows another path of the conversation: to this turn, and on from it. */
  moveLeaf = (sessionId: string, turnId: string) =>
    this.#json(`/v1/sessions/${encodeURIComponent(sessionId)}/leaf`, { method: "PUT", body: { turnId } });

  /** Begins a turn in another branch. Refused while another one runs. */
  branch = (sessionId: string, body: object) =>
    this.#json(`/v1/sessions/${encodeURIComponent(sessionId)}/turns`, { method: "POST", body });

  cancel = (turnId: string) => this.#json(`/v1/turns/${encodeURIComponent(turnId)}/cancel`, { method: "POST" });

  decide = (turnId: string, callId: string, body: object) =>
    this.#json(`/v1/turns/${encodeURIComponent(turnId)}/approvals/${encodeURIComponent(callId)}`, {
      method: "POST",
      body,
    });

  /** Starts a turn; the response is its event stream. Refused while another one runs. `name` is as for `queue`. */
  chat = (sessionId: string | null, message: string, choice: Choice, name: string) =>
    this.#request("/v1/chat", {
      method: "POST",
      body: { sessionId, message, clientMessageId: name, ...choice },
      accept: "text/event-stream",
    });

  /** The turn's events after `lastEventId` (null: from the start); status 204 when there are none left. */
  events = (turnId: string, lastEventId: string | null, signal: AbortSignal) =>
    this.#request(`/v1/turns/${encodeURIComponent(turnId)}/events`, {
      signal,
      accept: "text/event-stream",
      headers: lastEventId ? { "Last-Event-ID": lastEventId } : {},
    });

  /** What changes in the person's conversations, after this event (null: from now on). */
  sessionEvents = (lastEventId: string | null, signal: AbortSignal) =>
    this.#request("/v1/events", {
      signal,
      accept: "text/event-stream",
      headers: lastEventId ? { "Last-Event-ID": lastEventId } : {},
    });

  /** The bytes behind a result's `url`, which must be one of the engine's own. */
  media = async (url: string): Promise<Blob> => {
    const { href, origin, pathname } = new URL(url, location.href);
    if (origin !== location.origin || !pathname.startsWith("/v1/turns/"))
      throw new Error(`not the engine's own: ${url}`);
    return (await this.#request(href, { accept: "*/*" })).blob();
  };

  async #json<T>(path: string, options?: Options): Promise<T> {
    return (await this.#request(path, options)).json();
  }

  async #request(
    path: string,
    { method = "GET", body, headers = {}, accept = "application/json", signal }: Options = {},
  ): Promise<Response> {
    const request = `${method} ${path.split("?")[0]}`;
    for (;;) {
      const key = this.#keys.current();
      const response = await reach(request, path, {
        method,
        signal: signal ?? null,
        cache: "no-store",
        redirect: "error",
        body: body ? JSON.stringify(body) : null,
        headers: {
          Accept: accept,
          ...(body && { "Content-Type": "application/json" }),
          ...(key && { Authorization: `Bearer ${key}` }),
          ...headers,
        },
      });
      if (response.ok) {
        this.#answered(request);
        return response;
      }
      const error = await failure(response, request);
      if (response.status !== 401) throw error;
      // A wrong key must not stand before a sign-in, nor an old one before that which another request has got.
      if (key !== null) this.#keys.rejected(key);
      else if (this.#keys.current() === null && !(await this.#keys.ask(error.signIn))) throw error;
    }
  }
}

async function reach(request: string, path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(path, init);
  } catch (error) {
    throw isAbort(error) ? error : new ApiError(0, request, UNREACHABLE);
  }
}

async function failure(response: Response, request: string): Promise<ApiError> {
  const problem = await response.json().catch(() => null);
  return new ApiError(response.status, request, problem ?? { title: `The server answered ${response.status}.` });
}
