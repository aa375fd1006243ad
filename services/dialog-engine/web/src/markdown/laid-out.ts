/** What the worker makes of a text, when it has. */

import { useEffect, useState } from "preact/hooks";
import { type Jobs, workshop } from "./workshop";

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
