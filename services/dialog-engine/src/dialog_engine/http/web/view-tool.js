// @ts-check
/** One tool call as a card: its arguments, its state and its result. */

import { h, icon } from "./dom.js";
import { ENDED, needsApproval } from "./state.js";
import { delayReason, duration, TOOL_STATUS, toolLabel } from "./status.js";
import { ApprovalView } from "./view-approval.js";
import { links, shortenedHint } from "./view-result.js";
import { visible } from "./visible.js";

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|svg\+xml)$/;

export class ToolView {
  #media;
  /** @type {ApprovalView | null} */
  #approval = null;
  /** @type {Decide} */
  #decide;
  #turnId = "";
  /** @type {Call | null} */
  #call = null;
  #mark = h("span", { class: "mark" });
  #name = h("bdi", { class: "tool-name", "data-testid": "tool-name" });
  #server = h("bdi", { class: "tool-server" });
  #title = h("bdi", { class: "tool-server", "data-testid": "tool-quoted-title" });
  #status = h("span", { class: "tool-status", "data-testid": "tool-status" });
  #duration = h("span", { class: "tool-duration", "data-testid": "tool-duration" });
  #bar = h("progress", { "data-testid": "tool-progress" });
  #message = h("p", { class: "tool-message", "data-testid": "tool-message" });
  #progress = h("div", { class: "tool-progress" }, this.#bar, this.#message);
  #delay = h("p", { class: "tool-delay", "data-testid": "tool-delay" });
  #arguments = h("pre", { class: "data", "data-testid": "tool-args", "aria-label": "Arguments", tabindex: "0" });
  #asked = h("div", { class: "tool-body" }, h("h3", {}, "Arguments"), this.#arguments);
  #outcome = h("div", { class: "tool-body" });

  /**
   * `media` fetches the bytes of a result's image or sound, `decide` sends a decision on a call that waits for approval.
   * @param {FetchBlob} media
   * @param {import("./api.js").Api["decide"]} decide
   */
  constructor(media, decide) {
    this.#media = media;
    this.#decide = (call, body) => decide(this.#turnId, call.correlationId ?? "", body);
    this.element = h(
      "details",
      { class: "tool", "data-testid": "tool-card" },
      h(
        "summary",
        {},
        this.#mark,
        h("span", { class: "tool-title" }, this.#name, this.#server, this.#title),
        h("span", { class: "tool-state" }, this.#status, this.#duration),
        icon("chevron"),
      ),
      this.#progress,
      this.#delay,
      this.#asked,
      this.#outcome,
    );
  }

  /** @param {Item} item */
  update({ call, turnId }) {
    const before = this.#call;
    this.#call = call;
    this.#turnId = turnId ?? "";
    this.element.dataset.status = call.status;
    this.element.dataset.tool = call.toolName;
    if (!before) this.element.open = !call.past || call.status !== "succeeded" || hasMedia(call);
    const waits = needsApproval(call);
    this.element.dataset.approval = call.approval?.status ?? "";
    if (waits && before?.approval?.hash !== call.approval?.hash) this.element.open = true;
    this.#showHead(call);
    this.#showProgress(call);
    this.#delay.textContent = waits ? "" : delayReason(call);
    this.#asked.hidden = waits; // the form has them
    if (call.approval && !this.#approval) {
      this.#approval = new ApprovalView(this.#decide);
      this.#asked.after(this.#approval.element);
    }
    this.#approval?.update(call, /** @type {HTMLElement} */ (this.element.querySelector("summary")));
    if (before?.arguments !== call.arguments) this.#arguments.textContent = visible(pretty(call.arguments ?? {}));
    if (before?.status !== call.status && ENDED.has(call.status)) this.#outcome.replaceChildren(...this.#ended(call));
  }

  /** @param {Call} call */
  #showHead(call) {
    const attempt = (call.attempt ?? 1) > 1 && !ENDED.has(call.status) ? ` (attempt ${call.attempt})` : "";
    const waits = needsApproval(call);
    this.#mark.replaceChildren(icon(waits ? "alert" : (ICONS[call.status] ?? "busy")));
    this.#name.textContent = toolLabel(call);
    this.#name.title = call.toolName ?? "";
    this.#server.textContent = visible(call.server ?? "");
    this.#title.textContent = call.title ? `“${visible(call.title)}”` : "";
    this.#status.textContent = waits ? "Needs approval" : (TOOL_STATUS[call.status] ?? call.status) + attempt;
    this.#duration.textContent = call.durationMs === undefined ? "" : duration(call.durationMs);
  }

  /** @param {Call} call */
  #showProgress(call) {
    const { value, total, message } = call.progress ?? {};
    this.#progress.hidden = call.status !== "running";
    if (Number.isFinite(value) && total && total > 0) {
      this.#bar.max = total;
      this.#bar.value = value ?? 0;
    } else this.#bar.removeAttribute("value");
    this.#bar.setAttribute("aria-label", `Progress of ${toolLabel(call)}`);
    this.#message.textContent = message ?? "";
  }

  /** @param {Call} call */
  #ended({ result, error }) {
    /** @type {HTMLElement[]} */
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
    if (result.truncated) parts.push(shortenedHint(result.textUrl, pre, this.#media));
    if (result.links?.length) parts.push(links(result.links));
    for (const [index, media] of (result.media ?? []).entries()) parts.push(this.#mediaView(media, index));
    return parts;
  }

  /** @param {Media} media @param {number} index */
  #mediaView({ mimeType, url }, index) {
    return IMAGE.test(mimeType) ? this.#image(mimeType, url, index) : this.#download(mimeType, url);
  }

  /**
   * The image is fetched, not linked: an image tag cannot send the API key.
   * @param {string} mimeType
   * @param {string} url
   * @param {number} index
   */
  #image(mimeType, url, index) {
    const image = h("img", {
      class: "tool-image",
      alt: `Image ${index + 1} from ${toolLabel(this.#call ?? {})}`,
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

  /** @param {string} mimeType @param {string} url */
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

  /** @param {string} mimeType @param {string} url */
  async #objectUrl(mimeType, url) {
    return URL.createObjectURL(new Blob([await this.#media(url)], { type: mimeType }));
  }
}

/** @type {Record<string, string>} */
const ICONS = {
  succeeded: "check",
  failed: "cross",
  timeout: "clock",
  cancelled: "stop",
  unknown: "question",
  refused: "cross",
};

/** @param {Call} call */
const hasMedia = ({ result }) => Boolean(result?.media?.length);

const SHORT = 60;

/**
 * JSON with indentation, or on one line if it is short; any other text as it is.
 * @param {unknown} value
 * @returns {string}
 */
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
