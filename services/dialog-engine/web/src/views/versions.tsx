/** Which version of a question or of its answer is shown, and the way to the others: "‹ 2/3 ›". */

import { useLayoutEffect, useRef } from "preact/hooks";
import { Button } from "./button";

/** The version that was chosen with the keyboard or a click: it gets the focus when it is drawn. */
let chosen: string | null = null;

interface Props {
  turnId: string;
  /** All versions, this one too, in the order in which they began. */
  versions: string[];
  show: (turnId: string) => void;
}

export function Versions({ turnId, versions, show }: Props) {
  const group = useRef<HTMLDivElement>(null);
  const at = versions.indexOf(turnId);
  useLayoutEffect(() => {
    if (chosen !== turnId) return;
    chosen = null;
    group.current?.focus();
  }, [turnId]);
  const go = (place: number) => {
    const version = versions[place];
    if (version === undefined) return;
    chosen = version;
    show(version);
  };
  const onKeyDown = ({ key }: KeyboardEvent) => {
    if (key === "ArrowLeft") go(at - 1);
    else if (key === "ArrowRight") go(at + 1);
  };
  return (
    <div
      class="versions" role="group" tabIndex={-1} aria-label={`Version ${at + 1} of ${versions.length}`}
      data-testid="versions" ref={group} onKeyDown={onKeyDown}
    >
      <Button testId="version-before" aria-label="The version before" disabled={at < 1} onClick={() => go(at - 1)}>‹</Button>
      <span aria-hidden="true">{at + 1}/{versions.length}</span>
      <Button testId="version-next" aria-label="The next version" disabled={at + 1 >= versions.length} onClick={() => go(at + 1)}>
        ›
      </Button>
    </div>
  );
}
