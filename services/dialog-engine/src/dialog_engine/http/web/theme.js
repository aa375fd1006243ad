// Light or dark, before the first paint: a classic script, so that it runs before the page is drawn.
// Without a choice the system's preference holds; a choice is kept in localStorage.
(() => {
  const STORED = "callstream.theme";
  const root = document.documentElement;
  const systemIsDark = matchMedia("(prefers-color-scheme: dark)");
  const current = () => root.dataset.theme ?? (systemIsDark.matches ? "dark" : "light");

  try {
    const stored = localStorage.getItem(STORED);
    if (stored === "light" || stored === "dark") root.dataset.theme = stored;
  } catch {
    // Storage is blocked: the system's preference it is.
  }

  addEventListener("DOMContentLoaded", () => {
    const button = document.getElementById("theme-toggle");
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
