/** The resources and prompts that a message is written with: what is offered while one types, and what goes with the message. */

import { signal } from "@preact/signals";
import type { Api } from "../core/api";
import { type Attached, blockOf, expanded, fieldsOfOffer, MOST, type Offer, textOf, type Trigger, triggerAt } from "../core/offers";
import type { Drafts } from "./drafts";
import { Question } from "./questions";

/** How long nothing is typed before the engine is asked, in ms. */
const PAUSE_MS = 150;
/** The names of the drafts that have what is attached, and what is being filled in. */
const [KEPT, FILLING] = ["attached", "filling"];
export const NO_TEXT = "This resource has no text, so it cannot go with a message.";

interface Filling {
  offer: Offer;
  values: Record<string, string>;
}

export class Offers {
  trigger = signal<Trigger | null>(null);
  found = signal<Offer[]>([]);
  /** The place of the one that Enter takes. */
  active = signal(0);
  /** What is to be filled in before an offer can be used. */
  filling = new Question<Offer>();
  values: Record<string, string> = {};
  #read = new Map<string, Promise<string | null>>();
  #changes = signal(0);
  #looking = new AbortController();
  #pause: ReturnType<typeof setTimeout> | undefined;

  constructor(
    private readonly api: Api,
    private readonly drafts: Drafts,
    /** Says what failed. */
    private readonly say: (what: unknown) => void,
  ) {}

  /** What goes with the next message; it is kept with the draft. */
  get attached(): Attached[] {
    void this.#changes.value;
    return parsed(this.drafts.edited(KEPT), []);
  }

  /** The message box has this text now, and the caret is there. */
  look(text: string, caret: number): void {
    const [before, now] = [this.trigger.peek(), triggerAt(text, caret)];
    if (before?.kind === now?.kind && before?.from === now?.from && before?.query === now?.query) return;
    this.close();
    if (!now) return;
    const { signal } = (this.#looking = new AbortController());
    this.#pause = setTimeout(async () => {
      const offers = await this.#asked(now, signal).catch(() => []); // a list that does not come is no reason to interrupt
      if (signal.aborted) return;
      this.trigger.value = now;
      this.active.value = 0;
      this.found.value = offers;
    }, PAUSE_MS);
  }

  close(): void {
    this.#looking.abort();
    clearTimeout(this.#pause);
    this.trigger.value = null;
    this.found.value = [];
  }

  /** Uses an offer, after what it needs was filled in. What was typed for it leaves the message box. */
  async choose(offer: Offer): Promise<void> {
    const { from = 0, query = "" } = this.trigger.peek() ?? {};
    this.close();
    const text = this.drafts.text.peek();
    this.drafts.write(text.slice(0, from) + text.slice(from + 1 + query.length));
    await this.#use(offer, {});
  }

  /** What was being filled in when the page was left is asked for again, with what was written for it. */
  async goOn(): Promise<void> {
    const left = parsed<Filling | null>(this.drafts.edited(FILLING), null);
    if (left) await this.#use(left.offer, left.values);
  }

  /** A value for what is being filled in; it is kept as a draft until that is used or given up. */
  fill(offer: Offer, name: string, value: string): void {
    this.values = { ...this.values, [name]: value };
    this.#keepFilling({ offer, values: this.values });
  }

  /** Values for what is being filled in. */
  async complete(offer: Offer, name: string, value: string, signal: AbortSignal): Promise<string[]> {
    const { [name]: _, ...given } = this.values;
    const of = offer.kind === "prompt" ? { prompt: offer.name } : { resource: offer.uri };
    return (await this.api.complete({ server: offer.server, ...of, name, value, given }, signal)).values;
  }

  detach(resource: Attached): void {
    this.#keep(this.attached.filter(({ server, uri }) => server !== resource.server || uri !== resource.uri));
  }

  /** A message with all that goes with it, which is read now unless it was before. Throws the ApiError of one that cannot be. */
  async whole(text: string): Promise<string> {
    const blocks = await Promise.all(this.attached.map((each) => this.#block(each)));
    return [text, ...blocks.filter((each) => each !== null)].join("\n\n");
  }

  /** The message is on its way: nothing goes with the next one. */
  sent(): void {
    this.#keep([]);
    this.#read.clear();
  }

  async #asked({ kind, query }: Trigger, signal: AbortSignal): Promise<Offer[]> {
    if (kind === "prompt") return (await this.api.prompts(query, signal)).prompts.map((each) => ({ kind, ...each }));
    return (await this.api.resources(query, signal)).resources.map((each) => ({ kind, ...each }));
  }

  async #use(offer: Offer, values: Record<string, string>): Promise<void> {
    this.values = values;
    if (fieldsOfOffer(offer).length) {
      this.#keepFilling({ offer, values });
      const confirmed = await this.filling.ask(offer);
      this.#keepFilling(null);
      if (!confirmed) return;
    }
    await (offer.kind === "prompt" ? this.#write(offer) : this.#attach(offer)).catch(this.say);
  }

  async #write({ server, name }: Offer): Promise<void> {
    const values = Object.fromEntries(Object.entries(this.values).filter(([, value]) => value));
    const { messages } = await this.api.prompt({ server, name, arguments: values });
    this.drafts.write([this.drafts.text.peek(), textOf(messages)].filter(Boolean).join("\n\n"));
  }

  async #attach(offer: Offer & { kind: "resource" }): Promise<void> {
    const { server, name, title } = offer;
    const uri = offer.template ? expanded(offer.uri, this.values) : offer.uri;
    const resource = { server, uri, name: offer.template ? uri : title || name };
    if ((await this.#block(resource)) === null) return this.say(NO_TEXT);
    this.detach(resource);
    this.#keep([...this.attached, resource].slice(-MOST));
  }

  #block(resource: Attached): Promise<string | null> {
    const key = JSON.stringify([resource.server, resource.uri]);
    const read = this.#read.get(key) ?? this.api.content(resource).then((content) => blockOf(resource, content));
    this.#read.set(key, read);
    read.catch(() => this.#read.delete(key));
    return read;
  }

  #keepFilling(filling: Filling | null): void {
    this.drafts.keepEdited(FILLING, filling ? JSON.stringify(filling) : "");
  }

  #keep(attached: Attached[]): void {
    this.drafts.keepEdited(KEPT, attached.length ? JSON.stringify(attached) : "");
    this.#changes.value += 1;
  }
}

/** What a draft has, or else `otherwise`. */
function parsed<T>(text: string, otherwise: T): T {
  try {
    return text ? JSON.parse(text) : otherwise;
  } catch {
    return otherwise;
  }
}
