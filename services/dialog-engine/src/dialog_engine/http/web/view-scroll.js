/** Keeps the newest words in sight for as long as the user has not scrolled away from them. */

import { byId } from "./dom.js";

const NEAR_PX = 40;

export class ScrollView {
  #scroller = byId("scroller");
  #jump = byId("jump");
  #following = true;
  #top = 0;

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

  /** Only a movement upwards is a wish to read on in peace; the page itself only ever scrolls down. */
  #onScroll() {
    const { scrollTop } = this.#scroller;
    if (this.#distance() < NEAR_PX) this.#following = true;
    else if (scrollTop < this.#top) this.#following = false;
    this.#top = scrollTop;
    this.#show();
  }

  #keep() {
    if (this.#following) this.#scroller.scrollTop = this.#scroller.scrollHeight;
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
