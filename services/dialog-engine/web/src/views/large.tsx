/** A result in a window of its own, as a tree, a table, a diff or text. It is loaded when it is first opened. */

import type { ComponentChildren } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { CopyButton } from "./copy-button";
import { download } from "./result";

/** The most rows of a table, and entries of one object or list of a tree, that are drawn. */
const MOST = 1_000;
type View = "Tree" | "Table" | "Diff" | "Text";
type Row = Record<string, unknown>;

interface Props {
  label: string;
  /** The whole text. */
  text: () => Promise<string>;
  close: () => void;
}

export function Large({ label, text, close }: Props) {
  const dialog = useRef<HTMLDialogElement>(null);
  const [loaded, setLoaded] = useState<{ text: string; value: unknown; views: View[] } | null>(null);
  const [failed, setFailed] = useState(false);
  const [view, setView] = useState<View>("Text");
  useEffect(() => {
    dialog.current?.showModal();
    text().then(
      (whole) => {
        const value = parsed(whole);
        const views = viewsOf(whole, value);
        setLoaded({ text: whole, value, views });
        setView(views[0] ?? "Text");
      },
      () => setFailed(true),
    );
  }, []);
  return (
    <dialog class="large" aria-label={label} data-testid="large-result" ref={dialog} onClose={close}>
      <header class="large-head">
        <h2>{label}</h2>
        {loaded && loaded.views.length > 1 && <Views views={loaded.views} view={view} pick={setView} />}
        <CopyButton label="Copy" testId="copy-large" text={() => loaded?.text ?? ""} />
        <button
          type="button"
          class="quiet"
          data-testid="save-large"
          disabled={!loaded}
          onClick={() => download(new Blob([loaded?.text ?? ""]), loaded?.value === undefined ? "result.txt" : "result.json")}
        >
          Download
        </button>
        <button type="button" class="outlined" data-testid="close-large" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </header>
      <div class="large-body" tabIndex={0} role="region" aria-label="Content">
        {failed && <p role="alert">The whole result could not be loaded. Close this window and open it again.</p>}
        {!failed && !loaded && <p>Loading…</p>}
        {loaded && <Content {...loaded} view={view} />}
      </div>
    </dialog>
  );
}

const Views = ({ views, view, pick }: { views: View[]; view: View; pick: (view: View) => void }) => (
  <div role="group" aria-label="Shown as">
    {views.map((each) => (
      <button key={each} type="button" class="quiet" aria-pressed={each === view} onClick={() => pick(each)}>
        {each}
      </button>
    ))}
  </div>
);

function Content({ text, value, view }: { text: string; value: unknown; view: View }) {
  if (view === "Tree") return <Tree name="" value={value} open />;
  if (view === "Table") return <Table rows={value as Row[]} />;
  return <pre class="data">{view === "Diff" ? text.split("\n").map((line) => <Line line={line} />) : text}</pre>;
}

const CHANGES = new Map([
  ["+", "hljs-addition"],
  ["-", "hljs-deletion"],
  ["@", "hljs-comment"],
]);
const Line = ({ line }: { line: string }) => <span class={CHANGES.get(line.charAt(0))}>{`${line}\n`}</span>;

function Tree({ name, value, open = false }: { name: string; value: unknown; open?: boolean }) {
  const label = name && <b>{`${name}: `}</b>;
  if (value === null || typeof value !== "object")
    return (
      <p class="leaf">
        {label}
        {JSON.stringify(value)}
      </p>
    );
  const entries = Object.entries(value);
  return <Branch label={label} entries={entries} list={Array.isArray(value)} open={open} />;
}

interface BranchProps {
  label: ComponentChildren;
  entries: [string, unknown][];
  list: boolean;
  open: boolean;
}

/** What is in it is drawn once it is opened. */
function Branch({ label, entries, list, open: first }: BranchProps) {
  const [open, setOpen] = useState(first);
  return (
    <details open={open} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>
        {label}
        <span class="hint">{list ? `list of ${entries.length}` : `${entries.length} fields`}</span>
      </summary>
      {open && entries.slice(0, MOST).map(([key, each]) => <Tree key={key} name={key} value={each} />)}
      {open && entries.length > MOST && <p class="hint">{`${entries.length - MOST} more are in the text.`}</p>}
    </details>
  );
}

function Table({ rows }: { rows: Row[] }) {
  const columns = columnsOf(rows);
  return (
    <div class="prose">
      <table>
        <thead>
          <tr>
            {columns.map((name) => (
              <th key={name}>{name}</th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.slice(0, MOST).map((row, at) => (
            <tr key={at}>
              {columns.map((name) => (
                <td key={name}>{typeof row[name] === "string" ? row[name] : JSON.stringify(row[name])}</td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
      {rows.length > MOST && <p class="hint">{`${rows.length - MOST} more rows are in the text.`}</p>}
    </div>
  );
}

const columnsOf = (rows: Row[]): string[] => [...new Set(rows.slice(0, MOST).flatMap((row) => Object.keys(row)))];

function viewsOf(text: string, value: unknown): View[] {
  const table = Array.isArray(value) && value.length > 0 && value.every(isRow) && columnsOf(value).length <= 40;
  if (value !== undefined) return table ? ["Table", "Tree", "Text"] : ["Tree", "Text"];
  return /^(?:diff --git |@@ -\d+(?:,\d+)? \+\d+(?:,\d+)? @@)/m.test(text) ? ["Diff", "Text"] : ["Text"];
}

const isRow = (value: unknown): value is Row => value !== null && typeof value === "object" && !Array.isArray(value);

/** The value of a text of JSON; undefined for any other, and where a number would lose digits. */
function parsed(text: string): unknown {
  if (!/^\s*[[{]/.test(text) || /\d{16}/.test(text)) return undefined;
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}
