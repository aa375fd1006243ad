/**
 * The light or dark theme. The system's preference holds until the user chooses; the choice is kept in localStorage. The
 * build makes a classic script of this file, too, which gives the document its theme before the first paint.
 */

import { keep, kept, ofBrowser } from "./storage";

const STORED = "callstream.theme";

const stored = kept(ofBrowser, STORED);
if (stored === "light" || stored === "dark") document.documentElement.dataset.theme = stored;

export const systemIsDark = (): MediaQueryList => matchMedia("(prefers-color-scheme: dark)");

export const isDark = (): boolean =>
  (document.documentElement.dataset.theme ?? (systemIsDark().matches ? "dark" : "light")) === "dark";

/** Changes to the other theme, and keeps that choice. */
export function switchTheme(): void {
  const theme = isDark() ? "light" : "dark";
  document.documentElement.dataset.theme = theme;
  keep(ofBrowser, STORED, theme);
}
