/**
 * The light or dark theme. `theme.js`, a classic script, calls `applyTheme` before the first paint.
 * The system's preference holds until the user chooses; the choice is kept in localStorage.
 */

import { keep, kept, ofBrowser } from "./storage";

const STORED = "callstream.theme";

/** Gives the document the theme that was chosen, if one was. */
export function applyTheme(): void {
  const stored = kept(ofBrowser, STORED);
  if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;
}

export const systemIsDark = (): MediaQueryList => matchMedia("(prefers-color-scheme: dark)");

export const isDark = (): boolean =>
  (document.documentElement.dataset.theme ?? (systemIsDark().matches ? "dark" : "light")) === "dark";

/** Changes to the other theme, and keeps that choice. */
export function switchTheme(): void {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  keep(ofBrowser, STORED, theme);
}
