/** The worker: loads what a kind of work needs when it is first asked for. It may be ended at any moment. */

import type { BEGUN, Jobs, Request } from "../markdown/workshop";

const MAKERS: { [Kind in keyof Jobs]: () => Promise<(work: Jobs[Kind]["work"]) => Jobs[Kind]["result"] | null> } = {
  highlight: async () => (await import("./highlight")).highlight,
  math: async () => (await import("./math")).math,
};

onmessage = async ({ data: { kind, work } }: MessageEvent<Request>) => {
  try {
    const make = (await MAKERS[kind]()) as (work: unknown) => unknown;
    postMessage("begun" satisfies typeof BEGUN);
    postMessage(make(work));
  } catch {
    postMessage(null);
  }
};
