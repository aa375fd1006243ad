// @ts-check
// The light or dark theme, set before the first paint: a classic script runs before the page is drawn.
// The system's preference holds until the user chooses; the choice is kept in localStorage.
(() => {
  const STORED = "callstream.theme";
  const root = document.documentElement;
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme ?? (systemIsDark.matches ? "dark" : "light");

  try {
    const stored = localStorage.getItem(STORED);
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch {
    // Storage is blocked: the system's preference holds.
  }

  addEventListener("DOMContentLoaded", () => {
    const button = /** @type {HTMLElement} */ (document.getElementById("theme-toggle"));
    const show = () =>
      button.setAttribute("aria-label", current() === "dark" ? "Use the light theme" : "Use the dark theme");
    button.addEventListener("click", () => {
      root.dataset.theme = current() === "dark" ? "light" : "dark";
      try {
        localStorage.setItem(STORED, root.dataset.theme);
      } catch {
        // The choice lasts until the page is left.
      }
      show();
    });
    systemIsDark.addEventListener("change", show);
    show();
  });
})();
