/** What has failed, or is to be said: one notice at a time, which goes when its cause has gone. */

import { signal } from "@preact/signals";
import { ApiError, isAbort } from "../core/api";

export interface Notice {
  /** An error; or a sentence, which is none. */
  what: unknown;
  /** What helps, with the words on its button. */
  action?: { word: string; act: () => void } | undefined;
}

export class Notices {
  shown = signal<Notice | null>(null);

  show(what: unknown, action?: Notice["action"]): void {
    if (isAbort(what)) return;
    if (!(what instanceof ApiError || typeof what === "string")) console.error(what);
    this.shown.value = { what, action };
  }

  dismiss(): void {
    this.shown.value = null;
  }

  /** A request has succeeded: the server can be reached, knows who asks, and does what was asked. */
  answered(request: string): void {
    this.#over((error) => error.status === 0 || error.status === 401 || error.request === request);
  }

  /** A turn has ended: that it could not be stopped, or decided about, does not matter any more. */
  turnEnded(): void {
    this.#over(({ request }) => request.startsWith("POST /v1/turns/"));
  }

  #over(gone: (error: ApiError) => boolean): void {
    const { what } = this.shown.peek() ?? {};
    if (what instanceof ApiError && gone(what)) this.dismiss();
  }
}
