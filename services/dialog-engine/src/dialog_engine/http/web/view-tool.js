/** One tool call as a card: what was asked, how it goes, what came of it. */

import { h, icon } from "./dom.js";
import { ENDED, needsApproval } from "./state.js";
import { duration, hitch, TOOL_STATUS, toolLabel } from "./status.js";
import { ApprovalView } from "./view-approval.js";
import { links, theRest } from "./view-result.js";

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|svg\+xml)$/;

export class ToolView {
  #media;
  #approval = null;
  #decide;
  #turnId;
  #call = {};
  #mark = h("span", { class: "mark" });
  #name = h("bdi", { class: "tool-name", "data-testid": "tool-name" });
  #server = h("bdi", { class: "tool-server" });
  #status = h("span", { class: "tool-status", "data-testid": "tool-status" });
  #duration = h("span", { class: "tool-duration", "data-testid": "tool-duration" });
  #bar = h("progress", { "data-testid": "tool-progress" });
  #message = h("p", { class: "tool-message", "data-testid": "tool-message" });
  #hitch = h("p", { class: "tool-hitch", "data-testid": "tool-hitch" });
  #arguments = h("pre", { class: "data", "data-testid": "tool-args", "aria-label": "Arguments", tabindex: "0" });
  #asked = h("div", { class: "tool-body" }, h("h3", {}, "Arguments"), this.#arguments);
  #outcome = h("div", { class: "tool-body" });

  /**
   * `media(url) -> Promise<Blob>` fetches the bytes of a result's image or sound, `decide(turnId, correlationId, body)`
   * sends a decision on a call that waits for approval.
   */
  constructor(media, decide) {
    this.#media = media;
    this.#decide = (call, body) => decide(this.#turnId, call.correlationId, body);
    this.element = h(
      "details",
      { class: "tool", "data-testid": "tool-card" },
      h(
        "summary",
        {},
        this.#mark,
        h("span", { class: "tool-title" }, this.#name, this.#server),
        h("span", { class: "tool-state" }, this.#status, this.#duration),
        icon("chevron"),
      ),
      h("div", { class: "tool-progress" }, this.#bar, this.#message),
      this.#hitch,
      this.#asked,
      this.#outcome,
    );
  }

  update({ call, turnId }) {
    const before = this.#call;
    this.#call = call;
    this.#turnId = turnId;
    this.element.dataset.status = call.status;
    this.element.dataset.tool = call.toolName;
    if (before.status === undefined) this.element.open = !call.past || call.status !== "succeeded" || hasMedia(call);
    const waits = needsApproval(call);
    this.element.dataset.approval = call.approval?.status ?? "";
    if (waits && before.approval?.hash !== call.approval.hash) this.element.open = true;
    this.#showHead(call);
    this.#showProgress(call);
    this.#hitch.textContent = waits ? "" : hitch(call);
    this.#asked.hidden = waits; // the form has them
    if (call.approval && !this.#approval) {
      this.#approval = new ApprovalView(this.#decide);
      this.#asked.after(this.#approval.element);
    }
    this.#approval?.update(call, this.element.querySelector("summary"));
    if (before.arguments !== call.arguments) this.#arguments.textContent = pretty(call.arguments ?? {});
    if (before.status !== call.status && ENDED.has(call.status)) this.#outcome.replaceChildren(...this.#ended(call));
  }

  #showHead(call) {
    const attempt = call.attempt > 1 && !ENDED.has(call.status) ? ` (attempt ${call.attempt})` : "";
    const waits = needsApproval(call);
    this.#mark.replaceChildren(icon(waits ? "alert" : (ICONS[call.status] ?? "busy")));
    this.#name.textContent = toolLabel(call);
    this.#name.title = call.toolName;
    this.#server.textContent = call.server ?? "";
    this.#status.textContent = waits ? "Needs approval" : (TOOL_STATUS[call.status] ?? call.status) + attempt;
    this.#duration.textContent = Number.isFinite(call.durationMs) ? duration(call.durationMs) : "";
  }

  #showProgress({ status, progress }) {
    this.#bar.parentElement.hidden = status !== "running";
    const known = progress && Number.isFinite(progress.value) && progress.total > 0;
    if (known) {
      this.#bar.max = progress.total;
      this.#bar.value = progress.value;
    } else this.#bar.removeAttribute("value");
    this.#bar.setAttribute("aria-label", `Progress of ${toolLabel(this.#call)}`);
    this.#message.textContent = progress?.message ?? "";
  }

  #ended({ result, error }) {
    const parts = [];
    if (error) {
      parts.push(
        h("h3", {}, "Outcome"),
        h(
          "div",
          { class: "tool-error", "data-testid": "tool-error" },
          h("p", {}, error.message ?? ""),
          error.code ? h("code", { class: "chip bad", "data-testid": "tool-error-code" }, error.code) : null,
        ),
      );
    }
    if (!result) return parts;
    parts.push(h("h3", {}, "Result"));
    const pre = h("pre", { class: "data", "data-testid": "tool-result", "aria-label": "Result", tabindex: "0" });
    if (result.text || !(result.media?.length || result.links?.length)) {
      pre.textContent = pretty(result.text || "(empty)");
      parts.push(pre);
    }
    if (result.truncated) parts.push(theRest(result.textUrl, pre, this.#media));
    if (result.links?.length) parts.push(links(result.links));
    for (const [index, media] of (result.media ?? []).entries()) parts.push(this.#mediaView(media, index));
    return parts;
  }

  #mediaView({ mimeType, url }, index) {
    return IMAGE.test(mimeType) ? this.#image(mimeType, url, index) : this.#download(mimeType, url);
  }

  /** Fetched, not linked: an image tag cannot send the API key. */
  #image(mimeType, url, index) {
    const image = h("img", {
      class: "tool-image",
      alt: `Image ${index + 1} from ${toolLabel(this.#call)}`,
      "data-testid": "tool-image",
    });
    this.#objectUrl(mimeType, url).then(
      (source) => {
        image.onload = () => URL.revokeObjectURL(source);
        image.src = source;
      },
      () => image.replaceWith(h("p", { class: "hint" }, "The image could not be loaded.")),
    );
    return image;
  }

  #download(mimeType, url) {
    const link = h(
      "button",
      { type: "button", class: "quiet", "data-testid": "tool-download" },
      `Download (${mimeType})`,
    );
    link.addEventListener("click", async () => {
      const source = await this.#objectUrl("application/octet-stream", url).catch(() => null);
      if (source) h("a", { href: source, download: "result" }).click();
      else link.textContent = "The download failed";
    });
    return link;
  }

  async #objectUrl(mimeType, url) {
    return URL.createObjectURL(new Blob([await this.#media(url)], { type: mimeType }));
  }
}

const ICONS = {
  succeeded: "check",
  failed: "cross",
  timeout: "clock",
  cancelled: "stop",
  unknown: "question",
  refused: "cross",
};

const hasMedia = ({ result }) => Boolean(result?.media?.length);

const SHORT = 60;

/** JSON with indentation, or on one line if it is short; any other text as it is. */
function pretty(value) {
  if (typeof value !== "string") {
    const lines = JSON.stringify(value, null, 2);
    const line = lines.replace(/\n\s*/g, " ");
    return line.length > SHORT ? lines : line;
  }
  if (!/^\s*[[{]/.test(value) || /\d{16}/.test(value)) return value; // longer numbers would be rounded
  try {
    return pretty(JSON.parse(value));
  } catch {
    return value;
  }
}
