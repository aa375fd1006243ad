/** Keeps the newest words in sight until the user scrolls up. */

import { signal } from "@preact/signals";

const NEAR_PX = 40;

export class Scroll {
  /** Whether the end is out of sight, and the page does not go there by itself. */
  away = signal(false);
  #scroller: HTMLElement | null = null;
  #following = true;
  #top = 0;
  /** The distance from the end at which to stay when something is added above. */
  #held: number | null = null;

  /** `empty` says that nothing was written yet: then the page begins at its top. */
  constructor(private readonly empty: () => boolean) {}

  /** Begins with these elements, which stay: the one that scrolls, and what grows in it. */
  attach(scroller: HTMLElement, column: HTMLElement): void {
    this.#scroller = scroller;
    scroller.addEventListener("scroll", () => this.#onScroll(scroller), { passive: true });
    const grown = new ResizeObserver(() => this.#keep());
    grown.observe(column);
    grown.observe(scroller);
  }

  /** Goes to the end and stays there. */
  follow(): void {
    this.#following = true;
    this.#keep();
  }

  /** Keeps what is in sight where it is, while older messages are added above it. */
  hold(): void {
    this.#following = false;
    if (this.#scroller) this.#held = this.#scroller.scrollHeight - this.#scroller.scrollTop;
  }

  /** Only scrolling up is a wish of the user to stay there: the page itself scrolls down only. */
  #onScroll(scroller: HTMLElement): void {
    const { scrollTop } = scroller;
    if (distance(scroller) < NEAR_PX) this.#following = true;
    else if (scrollTop < this.#top) this.#following = false;
    this.#top = scrollTop;
    this.#show(scroller);
  }

  #keep(): void {
    const scroller = this.#scroller;
    if (!scroller) return;
    if (this.#following) scroller.scrollTop = this.empty() ? 0 : scroller.scrollHeight;
    else if (this.#held !== null) scroller.scrollTop = scroller.scrollHeight - this.#held;
    this.#held = null;
    this.#show(scroller);
  }

  #show(scroller: HTMLElement): void {
    this.away.value = !this.#following && !this.empty() && distance(scroller) >= NEAR_PX;
  }
}

const distance = ({ scrollHeight, scrollTop, clientHeight }: HTMLElement): number =>
  scrollHeight - scrollTop - clientHeight;
