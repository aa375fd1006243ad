/** At the message box: the list of resources or prompts while one types "@" or "/", and what goes with the message. */

import type { RefObject } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { visible } from "../core/calls";
import { fieldsOfOffer, labelOf, type Offer } from "../core/offers";
import { sentence } from "../core/words";
import type { Offers } from "../page/offers";
import type { Page } from "../page/page";
import { Button } from "./button";
import { Dialog } from "./dialogs";
import { Icon } from "./icon";
import { usePart } from "./kept";

const LIST = "offers";
const optionId = (at: number): string => `${LIST}-${at}`;

export function OfferList({ page, input }: { page: Page; input: RefObject<HTMLTextAreaElement | null> }) {
  const { offers } = page;
  useKeys(page, input);
  const [found, active] = [offers.found.value, offers.active.value];
  const open = found.length > 0;
  useEffect(() => {
    const box = input.current;
    if (!box) return;
    box.setAttribute("aria-autocomplete", "list");
    if (open) box.setAttribute("aria-controls", LIST);
    else box.removeAttribute("aria-controls");
    if (open) box.setAttribute("aria-activedescendant", optionId(active));
    else box.removeAttribute("aria-activedescendant");
    document.getElementById(optionId(active))?.scrollIntoView({ block: "nearest" });
  }, [open, active]);
  const many = found.length === 1 ? "1 is offered" : `${found.length} are offered`;
  useEffect(() => {
    if (open) page.announcements.say([`${many}: choose one with the arrows and Enter.`]);
  }, [found]);
  if (!open) return null;
  return (
    <ul id={LIST} class="offers" role="listbox" aria-label={found[0]?.kind === "prompt" ? "Prompts" : "Resources"} data-testid="offers">
      {found.map((offer, at) => (
        <li
          key={`${offer.server} ${offer.kind === "resource" ? offer.uri : offer.name}`}
          id={optionId(at)}
          role="option"
          aria-selected={at === active}
          data-testid="offer"
          onPointerDown={(event) => event.preventDefault() /* the message box keeps the focus */}
          onClick={() => offers.choose(offer).then(() => page.focusComposer())}
        >
          <bdi>{labelOf(offer)}</bdi> <bdi class="hint">{visible(offer.server)}</bdi>
          <span class="hint offer-about"><bdi>{visible(offer.description || (offer.kind === "resource" ? offer.uri : "")).slice(0, 200)}</bdi></span>
        </li>
      ))}
    </ul>
  );
}

/** What is typed in the message box, before it is read as a message: the list has the arrows, Enter, Tab and Escape. */
function useKeys({ offers, focusComposer }: Page, input: RefObject<HTMLTextAreaElement | null>): void {
  useEffect(() => {
    const box = input.current;
    if (!box) return undefined;
    const look = () => offers.look(box.value, box.selectionEnd);
    const onKey = (event: KeyboardEvent) => {
      const found = offers.found.peek();
      if (!found.length || event.isComposing) return;
      const move = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      const offer = found[offers.active.peek()];
      if (move) offers.active.value = (offers.active.peek() + move + found.length) % found.length;
      else if (event.key === "Escape") offers.close();
      else if ((event.key === "Enter" || event.key === "Tab") && offer) offers.choose(offer);
      else return;
      event.preventDefault();
      event.stopImmediatePropagation(); // Enter would send the message, Escape stop the answer
    };
    const close = () => offers.close();
    const ends = new AbortController();
    const { signal } = ends;
    box.addEventListener("keydown", onKey, { capture: true, signal });
    box.addEventListener("input", look, { signal });
    box.addEventListener("click", look, { signal });
    box.addEventListener("blur", close, { signal });
    return () => ends.abort();
  }, [offers, focusComposer]);
}

/** The resources that go with the next message. */
export function AttachedList({ page }: { page: Page }) {
  usePart(page, ({ sessionId }) => sessionId); // another conversation has others
  const attached = page.offers.attached;
  if (!attached.length) return null;
  return (
    <ul class="attached" aria-label="Goes with the message" data-testid="attached">
      {attached.map((each) => (
        <li key={`${each.server} ${each.uri}`} class="chip" title={visible(each.uri)}>
          <bdi>{visible(each.name).slice(0, 100)}</bdi> <bdi class="hint">{visible(each.server)}</bdi>
          <Button
            aria-label={`Leave out ${visible(each.name).slice(0, 100)}`}
            testId="detach"
            onClick={() => {
              page.offers.detach(each);
              page.keepFocus();
            }}
          >
            <Icon name="cross" />
          </Button>
        </li>
      ))}
    </ul>
  );
}

/** Asks for the arguments of a prompt, or the variables of a template. */
export function OfferDialog({ page: { offers } }: { page: Page }) {
  const offer = offers.filling.asked.value;
  return (
    <Dialog question={offers.filling} testId="offer-dialog" title={offer ? labelOf(offer) : "Fill in"}>
      {offer && (
        <>
          <p>
            Of the server <bdi>{visible(offer.server)}</bdi>.{" "}
            {offer.description && <bdi>{sentence(visible(offer.description).slice(0, 300))}</bdi>}
          </p>
          {fieldsOfOffer(offer).map((field) => (
            <Argument key={field.name} offers={offers} offer={offer} {...field} />
          ))}
        </>
      )}
      <div class="dialog-actions">
        <Button kind="outlined" testId="offer-cancel" onClick={() => offers.filling.end(false)}>Cancel</Button>
        <Button kind="primary" type="submit" testId="offer-use">Use it</Button>
      </div>
    </Dialog>
  );
}

const PAUSE_MS = 150;

interface ArgumentProps {
  offers: Offers;
  offer: Offer;
  name: string;
  description: string;
  required: boolean;
}

/** One of them; its server may know values for it, which the browser lists. */
function Argument({ offers, offer, name, description, required }: ArgumentProps) {
  const [values, setValues] = useState<string[]>([]);
  const looking = useRef(new AbortController());
  useEffect(() => () => looking.current.abort(), []);
  const id = `offer-${name}`;
  const write = (value: string) => {
    offers.fill(offer, name, value);
    looking.current.abort();
    const { signal } = (looking.current = new AbortController());
    const look = () => offers.complete(offer, name, value, signal).then(setValues, () => {});
    const pause = setTimeout(look, PAUSE_MS);
    signal.addEventListener("abort", () => clearTimeout(pause));
  };
  return (
    <div class="key-field">
      <label for={id}><bdi>{visible(name)}</bdi>{required && " (needed)"}</label>
      <input
        id={id}
        list={`${id}-values`}
        required={required}
        defaultValue={offers.values[name] ?? ""}
        autocomplete="off"
        dir="auto"
        aria-describedby={`${id}-about`}
        data-testid="offer-field"
        onFocus={({ currentTarget }) => write(currentTarget.value)}
        onInput={({ currentTarget }) => write(currentTarget.value)}
      />
      <datalist id={`${id}-values`}>
        {values.slice(0, 100).map((value) => (
          <option key={value} value={value} />
        ))}
      </datalist>
      <span id={`${id}-about`} class="hint">{description}</span>
    </div>
  );
}
