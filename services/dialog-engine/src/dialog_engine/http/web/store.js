/** The one place where the state changes. Listeners are told of every change, with what was there before. */

import { initial, reduce } from "./state.js";

export class Store {
  state = initial;
  #listeners = [];

  subscribe(listener) {
    this.#listeners.push(listener);
  }

  dispatch(action) {
    const before = this.state;
    this.state = reduce(before, action);
    if (this.state !== before) for (const listener of this.#listeners) listener(this.state, before);
  }
}
