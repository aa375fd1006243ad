/** Who uses the page: what the tabs of one person share has a name that no other person's tabs have. */

/** A digest of the subject; null where the browser makes none, which is without HTTPS on another machine. */
export async function digestOf(subject: string): Promise<string | null> {
  const { subtle } = crypto as { subtle?: SubtleCrypto };
  if (!subtle) return null;
  const bytes = new Uint8Array(await subtle.digest("SHA-256", new TextEncoder().encode(subject)));
  return Array.from(bytes.slice(0, 16), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What the tabs of one person say to each other: that the person has left. */
export class Tabs {
  #channel: BroadcastChannel | null = null;

  constructor(private readonly onLeft: () => void) {}

  /** The tabs of the person with this digest; without one a tab is on its own. */
  join(digest: string | null): void {
    this.#channel?.close();
    this.#channel = digest === null ? null : new BroadcastChannel(`callstream.${digest}`);
    this.#channel?.addEventListener("message", this.onLeft);
  }

  sayLeft(): void {
    this.#channel?.postMessage(null);
  }
}
