/**
 * The worker that colours code and lays out mathematics. It is started when it is first needed, and ended when one block
 * takes longer than 150 ms: a grammar can take seconds for a short text, and then the block stays plain.
 */

import { useEffect, useState } from "preact/hooks";

const MOST_MS = 150;
/** To load what a kind of work needs, until a block is begun: not counted to it. */
const LOAD_MS = 15_000;
/** How often the time is looked at. A machine that is busy with others does so late, and is given as much more time. */
const STEP_MS = 10;
/** What the worker says when it begins a block. */
export const BEGUN = "begun";
/** A text that is longer stays plain. */
const MOST_CHARACTERS = 100_000;

/** A piece of code, and the classes of its colour. */
export type Run = [text: string, scope: string | null];

/** A node of MathML: an element, or a text. */
export interface MathNode {
  tag?: string;
  attributes?: Record<string, string>;
  style?: Record<string, string>;
  children?: MathNode[];
  text?: string;
}

/** The kinds of work, what each gets and what it makes. */
export interface Jobs {
  highlight: { work: { text: string; language: string }; result: Run[] };
  math: { work: { tex: string; display: boolean }; result: MathNode };
}

export type Request = { kind: keyof Jobs; work: Jobs[keyof Jobs]["work"] };

interface Job extends Request {
  wanted: () => boolean;
  done: (result: unknown) => void;
}

export class Workshop {
  #worker: Worker | null = null;
  /** The kinds of which the worker could not begin a block. */
  #broken = new Set<keyof Jobs>();
  #waiting: Job[] = [];
  #working = false;

  constructor(private readonly start: () => Worker) {}

  /** What becomes of `work`; null when it takes too long, fails, or is not wanted any more when its turn comes. */
  make<Kind extends keyof Jobs>(
    kind: Kind,
    work: Jobs[Kind]["work"],
    wanted: () => boolean,
  ): Promise<Jobs[Kind]["result"] | null> {
    return new Promise((resolve) => {
      this.#waiting.push({ kind, work, wanted, done: resolve as Job["done"] });
      if (!this.#working) this.#workThrough();
    });
  }

  async #workThrough(): Promise<void> {
    this.#working = true;
    for (let job = this.#waiting.shift(); job; job = this.#waiting.shift()) {
      const known = !this.#broken.has(job.kind) && JSON.stringify(job.work).length <= MOST_CHARACTERS;
      job.done(known && job.wanted() ? await this.#ask(job) : null);
    }
    this.#working = false;
  }

  /** The worker's answer; null when it fails, or when none comes in time, and then the worker is ended. */
  #ask({ kind, work }: Request): Promise<unknown> {
    return new Promise((resolve) => {
      let begun = false;
      const finish = (result: unknown) => {
        stop();
        if (!begun) this.#broken.add(kind);
        resolve(result);
      };
      const end = () => {
        this.#worker?.terminate();
        this.#worker = null;
        finish(null);
      };
      let stop = countDown(LOAD_MS, end);
      try {
        this.#worker ??= this.start();
        this.#worker.onmessage = ({ data }) => {
          if (data !== BEGUN) return finish(data);
          begun = true;
          stop();
          stop = countDown(MOST_MS, end);
        };
        this.#worker.onerror = end;
        this.#worker.postMessage({ kind, work } satisfies Request);
      } catch {
        end();
      }
    });
  }
}

/** Calls `end` after `ms`, counted in steps; the result stops that. In a hidden tab, where timers are late, by the clock. */
function countDown(ms: number, end: () => void): () => void {
  let [left, before] = [ms, performance.now()];
  const step = () => {
    const now = performance.now();
    left -= globalThis.document?.hidden ? now - before : STEP_MS;
    before = now;
    if (left > 0) timer = setTimeout(step, STEP_MS);
    else end();
  };
  let timer = setTimeout(step, STEP_MS);
  return () => clearTimeout(timer);
}

/** The address of the worker's file, with its hash: the build puts it here. */
declare const WORKER_ADDRESS: string;

interface TrustedTypes {
  createPolicy(
    name: string,
    rules: { createScriptURL(address: string): string },
  ): { createScriptURL(address: string): unknown };
}

/** The only policy of the page, and the only address that it lets pass. A string becomes HTML nowhere. */
const policy = (globalThis as { trustedTypes?: TrustedTypes }).trustedTypes?.createPolicy("callstream-worker", {
  createScriptURL: (address) => {
    if (address !== WORKER_ADDRESS) throw new TypeError("This is not the page's worker.");
    return address;
  },
});

export const workshop = new Workshop(
  () => new Worker((policy?.createScriptURL(WORKER_ADDRESS) ?? WORKER_ADDRESS) as string, { type: "module" }),
);

/** The result of `work`, or null while there is none; null as `work` asks for nothing. An old result is never shown. */
export function useLaidOut<Kind extends keyof Jobs>(
  kind: Kind,
  work: Jobs[Kind]["work"] | null,
): Jobs[Kind]["result"] | null {
  const asked = work && JSON.stringify(work);
  const [made, setMade] = useState<{ asked: string; result: Jobs[Kind]["result"] | null } | null>(null);
  useEffect(() => {
    if (!work || !asked) return;
    let wanted = true;
    workshop.make(kind, work, () => wanted).then((result) => wanted && setMade({ asked, result }));
    return () => {
      wanted = false;
    };
  }, [kind, asked]);
  return made?.asked === asked ? made.result : null;
}
