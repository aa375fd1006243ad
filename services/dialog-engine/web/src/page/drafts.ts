/**
 * What is written but not sent, one text for each conversation, and one for each message in it that is edited. It outlives
 * a reload, and every tab has it, under a name with a digest of the person: nobody else who uses this browser sees it.
 */

import { signal } from "@preact/signals";
import { keep, kept, ofBrowser, remove } from "./storage";

/** The place of a conversation that does not exist yet. */
const NEW = "new";

export class Drafts {
  /** The text in the message box. */
  text = signal("");
  #place = NEW;
  /** Whose they are, once that is known. */
  #digest = signal<string | null>(null);
  /** Those that were written before it was known whose they are, or where nothing can be kept. */
  #here = new Map<string, string>();

  constructor() {
    // Another tab has written in the same conversation. New conversations are as many as tabs.
    addEventListener("storage", ({ key, newValue }) => {
      if (this.#place !== NEW && key === this.#name(this.#place)) this.text.value = newValue ?? "";
    });
  }

  /** Whose they are. Their own come back, unless something was written meanwhile. */
  belongTo(digest: string | null): void {
    if (digest === null || digest === this.#digest.peek()) return;
    this.#digest.value = digest;
    for (const [place, text] of this.#here) this.#keep(place, text);
    this.#here.clear();
    this.text.value = this.#load(this.#place);
  }

  /** Shows that of a conversation; null for a new one. What was written before a new one was `named` goes with it. */
  open(sessionId: string | null, named: boolean): void {
    if (this.#place === (sessionId ?? NEW)) return;
    if (named) this.#keep(NEW, "");
    this.#place = sessionId ?? NEW;
    if (named) this.write(this.text.value);
    else this.text.value = this.#load(this.#place);
  }

  write(text: string): void {
    this.text.value = text;
    this.#keep(this.#place, text);
  }

  /** A text that was not accepted goes back to where it was written, before what is there by now. */
  giveBack(sessionId: string | null, text: string): void {
    const place = sessionId ?? NEW;
    const written = this.#load(place);
    if (written.startsWith(text)) return; // it was given back before
    const both = [text, written].filter(Boolean).join("\n\n");
    this.#keep(place, both);
    if (place === this.#place) this.text.value = both;
  }

  /** Whose they are: a digest, or null as long as that is not known. */
  get digest(): string | null {
    return this.#digest.value;
  }

  /** What is written into the box in which a message of the conversation is edited; empty while nothing is. */
  edited(turnId: string): string {
    return this.#load(`${this.#place}.${turnId}`);
  }

  keepEdited(turnId: string, text: string): void {
    this.#keep(`${this.#place}.${turnId}`, text);
  }

  forget(sessionId: string): void {
    const own = this.#name(sessionId);
    if (own) remove(ofBrowser, own);
    this.#here.delete(sessionId);
  }

  /** Nothing of this person is left, here and in the browser. */
  erase(): void {
    const own = this.#name("");
    if (own) remove(ofBrowser, own);
    this.#digest.value = null;
    this.#here.clear();
    this.text.value = "";
  }

  #name(place: string): string | null {
    const digest = this.#digest.value;
    return digest && `callstream.draft.${digest}.${place}`;
  }

  #load(place: string): string {
    const name = this.#name(place);
    return this.#here.get(place) ?? (name && kept(ofBrowser, name)) ?? "";
  }

  #keep(place: string, text: string): void {
    const name = this.#name(place);
    if (name === null || !keep(ofBrowser, name, text)) this.#here.set(place, text);
    else this.#here.delete(place);
  }
}
