// @ts-check
/** The engine's HTTP interface. Every failure is an ApiError that can be shown as it is. */

const SIGN_IN = "/sign-in";

/** A failed request: the server's problem document, or the reason why there is none (`status` 0: not reached). */
export class ApiError extends Error {
  /**
   * @param {number} status
   * @param {{title?: string, detail?: unknown, code?: string, errors?: unknown, turnId?: string, signIn?: string}} problem
   */
  constructor(status, { title, detail, code, errors, turnId, signIn } = {}) {
    super(typeof detail === "string" ? detail : title || "The request failed.");
    this.status = status;
    this.title = title || `The server answered ${status}.`;
    this.detail = typeof detail === "string" ? detail : "";
    this.code = code || "";
    /** @type {{field: string, message: string}[]} */
    this.fields = Array.isArray(errors) ? errors : [];
    this.turnId = turnId || null;
    this.signIn = signIn === SIGN_IN;
  }
}

/** @param {unknown} error */
export const isAbort = (error) => error instanceof DOMException && error.name === "AbortError";

const UNREACHABLE = { title: "The server cannot be reached.", code: "UNREACHABLE" };

/**
 * @typedef {{method?: string, body?: object, headers?: Record<string, string>, accept?: string, signal?: AbortSignal}} Options
 */

export class Api {
  #keys;

  /**
   * `keys` is asked for a key when a 401 arrives, and whether people can sign in as well.
   * @param {{current(): string | null, ask(rejected: boolean, signIn: boolean): Promise<boolean>}} keys
   */
  constructor(keys) {
    this.#keys = keys;
  }

  about = () => this.#json("/v1/about");

  /** @returns {Promise<{subject: string, name: string, roles: string[]}>} */
  me = () => this.#json("/v1/me");

  signOut = () => this.#request("/sign-out", { method: "POST" });
  models = () => this.#json("/v1/models");

  /** @param {string | null} [before] @returns {Promise<{sessions: Session[], nextCursor: string | null}>} */
  sessions = (before) => this.#json(before ? `/v1/sessions?before=${encodeURIComponent(before)}` : "/v1/sessions");

  /** @param {AbortSignal} signal @returns {Promise<{sessionId: string}>} */
  createSession = (signal) => this.#json("/v1/sessions", { method: "POST", signal });

  /** @param {string} sessionId @param {AbortSignal} [signal] @param {string} [before] @returns {Promise<History>} */
  messages = (sessionId, signal, before) => {
    const url = `/v1/sessions/${encodeURIComponent(sessionId)}/messages`;
    return this.#json(before ? `${url}?before=${encodeURIComponent(before)}` : url, { signal });
  };

  /** @param {string} sessionId */
  deleteSession = (sessionId) => this.#request(`/v1/sessions/${encodeURIComponent(sessionId)}`, { method: "DELETE" });

  /** @param {string} turnId */
  cancel = (turnId) => this.#json(`/v1/turns/${encodeURIComponent(turnId)}/cancel`, { method: "POST" });

  /** @param {string} turnId @param {string} callId @param {object} body */
  decide = (turnId, callId, body) =>
    this.#json(`/v1/turns/${encodeURIComponent(turnId)}/approvals/${encodeURIComponent(callId)}`, {
      method: "POST",
      body,
    });

  /** @param {string[]} texts @returns {Promise<string[]>} */
  markdown = async (texts) => (await this.#json("/ui/markdown", { method: "POST", body: { texts } })).html;

  /**
   * Starts a turn; the response is its event stream. While another turn runs `onBusy` decides: "refuse" or "queue".
   * @param {string | null} sessionId
   * @param {string} message
   * @param {Choice} choice
   * @param {AbortSignal} signal
   */
  chat = (sessionId, message, choice, signal, onBusy = "refuse") =>
    this.#request("/v1/chat", {
      method: "POST",
      body: { sessionId, message, onBusy, ...choice },
      signal,
      accept: "text/event-stream",
    });

  /**
   * The turn's events after `lastEventId` (null: from the start); status 204 when there are none left.
   * @param {string} turnId
   * @param {string | null} lastEventId
   * @param {AbortSignal} signal
   */
  events = (turnId, lastEventId, signal) =>
    this.#request(`/v1/turns/${encodeURIComponent(turnId)}/events`, {
      signal,
      accept: "text/event-stream",
      headers: lastEventId ? { "Last-Event-ID": lastEventId } : {},
    });

  /**
   * The bytes behind a result's `url`, which must be one of the engine's own.
   * @param {string} url
   */
  media = async (url) => {
    const { href, origin, pathname } = new URL(url, location.href);
    if (origin !== location.origin || !pathname.startsWith("/v1/turns/"))
      throw new Error(`not the engine's own: ${url}`);
    return (await this.#request(href, { accept: "*/*" })).blob();
  };

  /** @param {string} path @param {Options} [options] @returns {Promise<any>} */
  async #json(path, options) {
    return (await this.#request(path, options)).json();
  }

  /** @param {string} path @param {Options} options @returns {Promise<Response>} */
  async #request(path, { method = "GET", body, headers = {}, accept = "application/json", signal } = {}) {
    for (;;) {
      const key = this.#keys.current();
      const response = await reach(path, {
        method,
        signal,
        cache: "no-store",
        redirect: "error",
        body: body && JSON.stringify(body),
        headers: {
          Accept: accept,
          ...(body && { "Content-Type": "application/json" }),
          ...(key && { Authorization: `Bearer ${key}` }),
          ...headers,
        },
      });
      if (response.ok) return response;
      const error = await failure(response);
      if (response.status !== 401) throw error;
      // Another request may have been given a new key in the meantime: try that one before asking again.
      if (this.#keys.current() === key && !(await this.#keys.ask(key !== null, error.signIn))) throw error;
    }
  }
}

/** @param {string} path @param {RequestInit} init */
async function reach(path, init) {
  try {
    return await fetch(path, init);
  } catch (error) {
    throw isAbort(error) ? error : new ApiError(0, UNREACHABLE);
  }
}

/** @param {Response} response */
async function failure(response) {
  const problem = await response.json().catch(() => null);
  return new ApiError(response.status, problem ?? { title: `The server answered ${response.status}.` });
}
