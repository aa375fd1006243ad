/** The engine's HTTP interface. Every failure is an ApiError that can be shown as it is. */

/** A request that failed: the server's problem document, or the reason why there is none (`status` 0: not reached). */
export class ApiError extends Error {
  constructor(status, { title, detail, code, errors, turnId } = {}) {
    super(typeof detail === "string" ? detail : title || "The request failed.");
    this.status = status;
    this.title = title || `The server answered ${status}.`;
    this.detail = typeof detail === "string" ? detail : "";
    this.code = code || "";
    this.fields = Array.isArray(errors) ? errors : [];
    this.turnId = turnId || null;
  }
}

export const isAbort = (error) => error?.name === "AbortError";

const UNREACHABLE = { title: "The server cannot be reached.", code: "UNREACHABLE" };

export class Api {
  #keys;

  /** `keys` is `{current(): string|null, ask(rejected: boolean): Promise<boolean>}`; it is asked when a 401 arrives. */
  constructor(keys) {
    this.#keys = keys;
  }

  about = (signal) => this.#json("/v1/about", { signal });
  models = (signal) => this.#json("/v1/models", { signal });
  sessions = (before, signal) =>
    this.#json(before ? `/v1/sessions?before=${encodeURIComponent(before)}` : "/v1/sessions", { signal });
  createSession = (signal) => this.#json("/v1/sessions", { method: "POST", signal });
  messages = (sessionId, signal) => this.#json(`/v1/sessions/${encodeURIComponent(sessionId)}/messages`, { signal });
  deleteSession = (sessionId) => this.#request(`/v1/sessions/${encodeURIComponent(sessionId)}`, { method: "DELETE" });
  cancel = (turnId) => this.#json(`/v1/turns/${encodeURIComponent(turnId)}/cancel`, { method: "POST" });
  decide = (turnId, callId, body) =>
    this.#json(`/v1/turns/${encodeURIComponent(turnId)}/approvals/${encodeURIComponent(callId)}`, {
      method: "POST",
      body,
    });
  markdown = async (texts) => (await this.#json("/ui/markdown", { method: "POST", body: { texts } })).html;

  /**
   * Starts a turn; the response is its event stream. `choice` is what the message asks for, `{model, toolMode}`; what is
   * left out is as usual. While another turn runs: `onBusy` "refuse" or "queue".
   */
  chat = (sessionId, message, choice, signal, onBusy = "refuse") =>
    this.#request("/v1/chat", {
      method: "POST",
      body: { sessionId, message, onBusy, ...choice },
      signal,
      accept: "text/event-stream",
    });

  /** The turn's events after `lastEventId` (null: from the start); status 204 when there are none left. */
  events = (turnId, lastEventId, signal) =>
    this.#request(`/v1/turns/${encodeURIComponent(turnId)}/events`, {
      signal,
      accept: "text/event-stream",
      headers: lastEventId ? { "Last-Event-ID": lastEventId } : {},
    });

  /** The bytes behind a result's `url`, which must be one of the engine's own. */
  media = async (url) => {
    const { href, origin, pathname } = new URL(url, location.href);
    if (origin !== location.origin || !pathname.startsWith("/v1/turns/"))
      throw new Error(`not the engine's own: ${url}`);
    return (await this.#request(href, { accept: "*/*" })).blob();
  };

  async #json(path, options) {
    return (await this.#request(path, options)).json();
  }

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
      if (this.#keys.current() === key && !(await this.#keys.ask(key !== null))) throw error;
    }
  }
}

async function reach(path, init) {
  try {
    return await fetch(path, init);
  } catch (error) {
    throw isAbort(error) ? error : new ApiError(0, UNREACHABLE);
  }
}

async function failure(response) {
  const problem = await response.json().catch(() => null);
  return new ApiError(response.status, problem ?? { title: `The server answered ${response.status}.` });
}
