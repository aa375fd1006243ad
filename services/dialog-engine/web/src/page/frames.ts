/** Calls `draw` soon after it is asked to, once for all that happened: with the next frame, in a hidden tab a little later. */

const HIDDEN_MS = 250;

export function onceSoon(draw: () => void): () => void {
  let asked = false;
  const now = () => {
    if (!asked) return;
    asked = false;
    draw();
  };
  // A frame that was asked for does not come when the tab is hidden before.
  addEventListener("visibilitychange", now);
  return () => {
    if (asked) return;
    asked = true;
    if (document.hidden) setTimeout(now, HIDDEN_MS);
    else requestAnimationFrame(now);
  };
}
