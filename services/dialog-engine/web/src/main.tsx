/** Starts the page. */

import { effect } from "@preact/signals";
import { render } from "preact";
import { Page } from "./page/page";
import { App } from "./views/app";

/** The address of the icon, with its hash: the build puts it here. */
declare const ICON_ADDRESS: string;

const page = new Page();
effect(() => {
  document.title = page.title.value ? `${page.title.value} · Callstream` : "Callstream";
});
const root = document.getElementById("page");
if (root) render(<App page={page} icon={ICON_ADDRESS} />, root);
page.start();
