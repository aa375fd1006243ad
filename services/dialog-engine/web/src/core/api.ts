/** The engine's HTTP interface. Every failure is an ApiError that can be shown as it is. */

import type { Attached, Content, Prompt, PromptMessage, Resource } from "./offers";
import type { About, Choice, History, MadeCall, Offer, ServerState, Session, ToolChoice } from "./types";

/** A problem document of the server. */
interface Problem {
  title?: string;
  detail?: unknown;
  code?: string;
  errors?: unknown;
  signIn?: string;
}

/** A failed request: the server's problem document, or the reason why there is none (`status` 0: not reached). */
export class ApiError extends Error {
  code: string;
  fields: { field: string; message: string }[];
  /** Whether people can sign in at this server. */
  signIn: boolean;

  /** `request` is the method and path of what was asked. */
  constructor(
    readonly status: number,
    readonly request: string,
    { title, detail, code = "", errors, signIn }: Problem = {},
  ) {
    super((typeof detail === "string" && detail) || title || `The server answered ${status}.`);
    this.code = code;
    this.fields = Array.isArray(errors) ? errors : [];
    this.signIn = signIn === "/sign-in";
  }
}

export const isAbort = (error: unknown): boolean => error instanceof DOMException && error.name === "AbortError";

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

/** A path with these parts in it, of which each stays one part. */
const path = (texts: TemplateStringsArray, ...parts: string[]): string =>
  String.raw({ raw: texts }, ...parts.map(encodeURIComponent));

export class Api {
  /** `answered(request)` is called with the method and path of each request that succeeds. */
  constructor(private readonly keys: KeySource, private readonly answered: (request: string) => void) {}

  /** Asks the engine once whether it accepts this key. Throws the ApiError of a refusal. */
  async check(key: string): Promise<void> {
    const headers = { Accept: "application/json", Authorization: `Bearer ${key}` };
    const response = await reach("GET /v1/me", "/v1/me", { headers, cache: "no-store", redirect: "error" });
    if (!response.ok) throw await failure(response, "GET /v1/me");
  }

  about = () => this.#json<About>("/v1/about");
  me = () => this.#json<{ subject: string; name: string; roles: string[] }>("/v1/me");
  models = () => this.#json<Offer>("/v1/models");
  tools = () => this.#json<{ servers: ServerState[] }>("/v1/tools");
  signOut = () => this.#request("/sign-out", { method: "POST" });

  /** A page of conversations: those before the cursor, or the newest, as many as `limit` if that is given. */
  sessions = ({ before, limit }: { before?: string | null; limit?: number } = {}) => {
    const query = before ? path`?before=${before}` : limit ? `?limit=${limit}` : "";
    return this.#json<{ sessions: Session[]; nextCursor: string | null }>(`/v1/sessions${query}`);
  };

  messages = async (sessionId: string, signal?: AbortSignal, before?: string): Promise<History> => {
    const url = path`/v1/sessions/${sessionId}/messages` + (before ? path`?before=${before}` : "");
    const response = await this.#request(url, { signal });
    const now = Date.parse(response.headers.get("Date") ?? "");
    return { ...(await response.json()), aheadMs: Date.now() - now || 0 };
  };

  /** What waits in a conversation and which turn runs in it, with the newest message only. */
  newest = (sessionId: string) => this.#json<History>(path`/v1/sessions/${sessionId}/messages?limit=1`);

  /** Begins a turn: in another branch, or, where `onBusy` says so, after those that run or wait. */
  begin = (sessionId: string, body: object) => this.#json(path`/v1/sessions/${sessionId}/turns`, { method: "POST", body });

  edit = (turnId: string, message: string) => this.#json(path`/v1/turns/${turnId}`, { method: "PATCH", body: { message } });
  withdraw = (turnId: string) => this.#json(path`/v1/turns/${turnId}`, { method: "DELETE" });
  cancel = (turnId: string) => this.#json(path`/v1/turns/${turnId}/cancel`, { method: "POST" });

  /** Sends a message that waits before all others; with `stop` the running turn is stopped for it. */
  sendNow = (turnId: string, stop: boolean) =>
    this.#json(path`/v1/turns/${turnId}/send` + (stop ? "?stop=true" : ""), { method: "POST" });

  /** `stop`: its running turn is stopped first; otherwise that is a reason to refuse. */
  deleteSession = (sessionId: string, stop: boolean) =>
    this.#request(path`/v1/sessions/${sessionId}` + (stop ? "?stop=true" : ""), { method: "DELETE" });

  turn = (turnId: string) => this.#json<{ parentTurnId?: string }>(path`/v1/turns/${turnId}`);

  /** The calls of a turn, and of those after it, whose effects stay when another answer is shown in its place. */
  effects = (turnId: string) => this.#json<{ calls: MadeCall[]; more: boolean }>(path`/v1/turns/${turnId}/effects`);

  /** Which tools the messages of a conversation may use from now on; null: all. */
  chooseTools = (sessionId: string, tools: ToolChoice | null) =>
    this.#json(path`/v1/sessions/${sessionId}`, { method: "PATCH", body: { tools } });

  /** Shows another path of the conversation: to this turn, and on from it. */
  moveLeaf = (sessionId: string, turnId: string) =>
    this.#json(path`/v1/sessions/${sessionId}/leaf`, { method: "PUT", body: { turnId } });

  decide = (turnId: string, callId: string, body: object) =>
    this.#json(path`/v1/turns/${turnId}/approvals/${callId}`, { method: "POST", body });

  /** Answers a question of a call's server. */
  answer = (turnId: string, questionId: string, body: object) =>
    this.#json(path`/v1/turns/${turnId}/questions/${questionId}`, { method: "POST", body });

  /** What may be read, and prompts, whose name, title or address has this text: the first few. */
  resources = (query: string, signal: AbortSignal) =>
    this.#json<{ resources: Resource[] }>(path`/v1/resources?limit=8&query=${query}`, { signal });
  prompts = (query: string, signal: AbortSignal) =>
    this.#json<{ prompts: Prompt[] }>(path`/v1/prompts?limit=8&query=${query}`, { signal });
  content = ({ server, uri }: Attached) =>
    this.#json<Content>(path`/v1/resources/content?server=${server}&uri=${uri}`);
  prompt = (body: object) => this.#json<{ messages: PromptMessage[] }>("/v1/prompts/get", { method: "POST", body });
  complete = (body: object, signal: AbortSignal) =>
    this.#json<{ values: string[] }>("/v1/prompts/complete", { method: "POST", body, signal });

  /** Starts a turn, in a new conversation without `sessionId`; the response is its event stream. */
  chat = (body: { sessionId: string | null; message: string; clientMessageId: string } & Choice) =>
    this.#request("/v1/chat", { method: "POST", body, accept: "text/event-stream" });

  /** The turn's events after `lastEventId` (null: from the start); status 204 when there are none left. */
  events = (turnId: string, lastEventId: string | null, signal: AbortSignal) =>
    this.#stream(path`/v1/turns/${turnId}/events`, lastEventId, signal);

  /** What changes in the person's conversations, after this event (null: from now on). */
  sessionEvents = (lastEventId: string | null, signal: AbortSignal) => this.#stream("/v1/events", lastEventId, signal);

  /** The bytes behind a result's `url`, which must be one of the engine's own. */
  media = async (url: string): Promise<Blob> => {
    const { href, origin, pathname } = new URL(url, location.href);
    if (origin !== location.origin || !pathname.startsWith("/v1/turns/"))
      throw new Error(`not the engine's own: ${url}`);
    return (await this.#request(href, { accept: "*/*" })).blob();
  };

  #stream(url: string, lastEventId: string | null, signal: AbortSignal): Promise<Response> {
    const headers = lastEventId ? { "Last-Event-ID": lastEventId } : undefined;
    return this.#request(url, { signal, accept: "text/event-stream", ...(headers && { headers }) });
  }

  async #json<T>(url: string, options?: Options): Promise<T> {
    return (await this.#request(url, options)).json();
  }

  async #request(
    url: string,
    { method = "GET", body, headers, accept = "application/json", signal }: Options = {},
  ): Promise<Response> {
    const request = `${method} ${url.split("?")[0]}`;
    for (;;) {
      const key = this.keys.current();
      const response = await reach(request, url, {
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
        this.answered(request);
        return response;
      }
      const error = await failure(response, request);
      if (response.status !== 401) throw error;
      // A wrong key must not stand before a sign-in, nor an old one before that which another request has got.
      if (key !== null) this.keys.rejected(key);
      else if (this.keys.current() === null && !(await this.keys.ask(error.signIn))) throw error;
    }
  }
}

async function reach(request: string, url: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(url, init);
  } catch (error) {
    if (isAbort(error)) throw error;
    throw new ApiError(0, request, { title: "The server cannot be reached.", code: "UNREACHABLE" });
  }
}

const failure = async (response: Response, request: string): Promise<ApiError> =>
  new ApiError(response.status, request, (await response.json().catch(() => null)) ?? undefined);
