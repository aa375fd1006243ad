/** Starts the page. */

import { effect } from "@preact/signals";
import { render } from "preact";
import { Page } from "./page/page";
import { App } from "./views/app";
import { load } from "./views/loaded";

/** The address of the icon, with its hash: the build puts it here. */
declare const ICON_ADDRESS: string;

const page = new Page();
effect(() => {
  const [count, name] = [page.waiting.value, page.title.value];
  document.title = `${count ? `(${count}) ` : ""}${name ? `${name} · ` : ""}Callstream`;
  const { setAppBadge } = navigator as { setAppBadge?: (count: number) => Promise<void> };
  setAppBadge?.call(navigator, count).catch(() => {});
});
const root = document.getElementById("page");
if (root) render(<App page={page} icon={ICON_ADDRESS} />, root);
page.start();
load().catch(() => {}); // who needs a part asks again
