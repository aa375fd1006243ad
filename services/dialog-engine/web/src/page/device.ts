/** What kind of device this is, and when it draws. */

/** Whether it is used with a finger: then Enter makes a line, as on every phone, and nothing gets the focus by itself. */
export const byTouch = (): boolean => matchMedia("(pointer: coarse)").matches;

const HIDDEN_MS = 250;

/** Calls `draw` soon after it is asked to, once for all that happened: with the next frame, in a hidden tab a little later. */
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
