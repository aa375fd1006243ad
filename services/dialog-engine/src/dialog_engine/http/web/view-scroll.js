// @ts-check
/** Keeps the newest words in sight until the user scrolls up. */

import { byId } from "./dom.js";

const NEAR_PX = 40;

export class ScrollView {
  #scroller = byId("scroller");
  #jump = byId("jump");
  #following = true;
  #top = 0;
  /** @type {number | null} The distance from the end at which to stay when something is added above. */
  #held = null;

  constructor() {
    this.#scroller.addEventListener("scroll", () => this.#onScroll(), { passive: true });
    this.#jump.addEventListener("click", () => this.follow());
    const grown = new ResizeObserver(() => this.#keep());
    grown.observe(byId("column"));
    grown.observe(this.#scroller);
  }

  /** Goes to the end and stays there. */
  follow() {
    this.#following = true;
    this.#keep();
  }

  /** Keeps what is in sight where it is, while older messages are added above it. */
  hold() {
    this.#following = false;
    this.#held = this.#scroller.scrollHeight - this.#scroller.scrollTop;
  }

  /** Only scrolling up is a wish of the user to stay there: the page itself scrolls down only. */
  #onScroll() {
    const { scrollTop } = this.#scroller;
    if (this.#distance() < NEAR_PX) this.#following = true;
    else if (scrollTop < this.#top) this.#following = false;
    this.#top = scrollTop;
    this.#show();
  }

  #keep() {
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
    else if (this.#held !== null) this.#scroller.scrollTop = this.#scroller.scrollHeight - this.#held;
    this.#held = null;
    this.#show();
  }

  #show() {
    this.#jump.hidden = this.#following || this.#distance() < NEAR_PX;
  }

  #distance() {
    const { scrollHeight, scrollTop, clientHeight } = this.#scroller;
    return scrollHeight - scrollTop - clientHeight;
  }
}
