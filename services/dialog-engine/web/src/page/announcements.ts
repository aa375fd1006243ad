/** What screen readers speak: that which is added to the live region. */

import { signal } from "@preact/signals";

const KEPT = 10;

export class Announcements {
  spoken = signal<{ key: number; text: string }[]>([]);
  #count = 0;

  say(texts: string[]): void {
    if (!texts.length) return;
    const added = texts.map((text) => ({ key: (this.#count += 1), text }));
    this.spoken.value = [...this.spoken.value, ...added].slice(-KEPT);
  }
}
