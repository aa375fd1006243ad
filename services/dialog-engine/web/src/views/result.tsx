/** The outcome of a tool call. Texts of tools are shown as text, never as markup. */

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";
import { refusedByPerson } from "../core/calls";
import { stateLost, toolLabel, whatToCheck } from "../core/status";
import { effectOf, sentence } from "../core/words";
import { Button } from "./button";
import { load } from "./loaded";
import type { Call, Media, ResourceLink, Result } from "../core/types";

type FetchBlob = (url: string) => Promise<Blob>;

const IMAGE = /^image\/(png|jpeg|gif|webp|avif|svg\+xml)$/;
const WEB = /^https?:\/\//i;
const SHORT = 60;

export function Outcome({ call, media }: { call: Call; media: FetchBlob }) {
  const { error, result } = call;
  return (
    <>
      {error && !refusedByPerson(call) && (
        <>
          <h3>Outcome</h3>
          <div class="tool-error" data-testid="tool-error" data-code={error.code}>
            <p>{[error.message ?? "", effectOf(error.code ?? "")].filter(Boolean).map(sentence).join(" ")}</p>
            {call.status === "unknown" && <p data-testid="tool-check">{whatToCheck(call)}</p>}
          </div>
        </>
      )}
      {call.stateLost && <p class="note" data-testid="tool-state-lost">{stateLost(call)}</p>}
      {result && <ResultPart result={result} media={media} tool={toolLabel(call)} />}
    </>
  );
}

/** The text, with a button that opens it large, and whole where only a part is shown; the links, and what is not text. */
function ResultPart({ result, media, tool }: { result: Result; media: FetchBlob; tool: string }) {
  const { text, truncated, textUrl, media: parts = [], links = [] } = result;
  const [large, setLarge] = useState<ComponentChildren>(null);
  const openLarge = async () => {
    const { Large } = await load();
    const whole = async () => (textUrl ? (await media(textUrl)).text() : (text ?? ""));
    setLarge(<Large label={`Result of ${tool}`} text={whole} close={() => setLarge(null)} />);
  };
  return (
    <>
      <h3>Result</h3>
      {(text || !(parts.length || links.length)) && (
        <pre class="data" data-testid="tool-result" aria-label="Result" tabIndex={0}>{pretty(text || "(empty)")}</pre>
      )}
      {(text || textUrl) && (
        <p class="hint">
          {truncated && "The result is long; a part of it is shown. "}
          <Button testId="tool-open-large" onClick={openLarge}>{truncated ? "Show all" : "Open large"}</Button>
        </p>
      )}
      {large}
      {links.length > 0 && <ul class="tool-links" data-testid="tool-links">{links.map((each) => <Link {...each} />)}</ul>}
      {parts.map((each, index) =>
        IMAGE.test(each.mimeType) ? (
          <Picture key={index} {...each} label={`Image ${index + 1} from ${tool}`} media={media} />
        ) : (
          <Download key={index} {...each} media={media} />
        ),
      )}
    </>
  );
}

/** A resource that a result links to; only a web address can be clicked. */
function Link({ uri, name, title, mimeType, description }: ResourceLink) {
  const label = title || name || uri;
  const about = [mimeType, description].filter(Boolean).join(" · ");
  return (
    <li>
      {WEB.test(uri) ? (
        <a href={uri} target="_blank" rel="noopener noreferrer">{label}</a>
      ) : (
        <span>{label}</span>
      )}{" "}
      <code>{uri}</code>
      {about && <span class="hint"> {about}</span>}
    </li>
  );
}

interface Shown extends Media {
  media: FetchBlob;
}

/** The image is fetched, not linked: an image tag cannot send the API key. */
function Picture({ mimeType, url, label, media }: Shown & { label: string }) {
  const [source, setSource] = useState<string | null>(null);
  const [failed, setFailed] = useState(false);
  useEffect(() => {
    const show = (bytes: Blob) => setSource(URL.createObjectURL(new Blob([bytes], { type: mimeType })));
    media(url).then(show, () => setFailed(true));
  }, [url, mimeType]);
  if (failed) return <p class="hint">The image could not be loaded.</p>;
  return (
    <img
      class="tool-image" alt={label} data-testid="tool-image" src={source ?? undefined}
      onLoad={({ currentTarget }) => URL.revokeObjectURL(currentTarget.src)}
    />
  );
}

function Download({ mimeType, url, media }: Shown) {
  const [failed, setFailed] = useState(false);
  const save = async () => {
    const blob = await media(url).catch(() => null);
    if (!blob) return setFailed(true);
    download(blob, "result");
  };
  return (
    <Button testId="tool-download" onClick={save}>{failed ? "The download failed" : `Download (${mimeType})`}</Button>
  );
}

/** Saves bytes as a file of that name. */
export function download(blob: Blob, name: string): void {
  const link = document.createElement("a");
  const href = URL.createObjectURL(new Blob([blob], { type: "application/octet-stream" }));
  Object.assign(link, { href, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(href), 60_000);
}

/** JSON with indentation, or on one line if it is short; any other text as it is. */
export function pretty(value: unknown): string {
  const parsed = typeof value === "string" ? valueOf(value) : value;
  if (parsed === undefined) return String(value);
  const lines = JSON.stringify(parsed, null, 2);
  const line = lines.replace(/\n\s*/g, " ");
  return line.length > SHORT ? lines : line;
}

/** The object or list of a text of JSON; undefined for any other, and where a number would lose digits. */
export function valueOf(text: string): unknown {
  if (!/^\s*[[{]/.test(text) || /\d{16}/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
