/** A result in a window of its own, as a tree, a table, a diff or text. It is loaded when it is first opened. */

import { useEffect, useRef, useState } from "preact/hooks";
import { Button } from "./button";
import { CopyButton } from "./copy-button";
import { download, valueOf } from "./result";

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
    const show = (whole: string) => {
      const value = valueOf(whole);
      const views = viewsOf(whole, value);
      setLoaded({ text: whole, value, views });
      setView(views[0] ?? "Text");
    };
    text().then(show, () => setFailed(true));
  }, []);
  return (
    <dialog class="large" aria-label={label} data-testid="large-result" ref={dialog} onClose={close}>
      <header class="large-head">
        <h2>{label}</h2>
        <div role="group" aria-label="Shown as" hidden={!loaded || loaded.views.length < 2}>
          {loaded?.views.map((each) => (
            <Button key={each} aria-pressed={each === view} onClick={() => setView(each)}>{each}</Button>
          ))}
        </div>
        <CopyButton label="Copy" testId="copy-large" text={() => loaded?.text ?? ""} />
        <Button
          testId="save-large" disabled={!loaded}
          onClick={() => download(new Blob([loaded?.text ?? ""]), loaded?.value === undefined ? "result.txt" : "result.json")}
        >
          Download
        </Button>
        <Button kind="outlined" testId="close-large" onClick={() => dialog.current?.close()}>Close</Button>
      </header>
      <div class="large-body" tabIndex={0} role="region" aria-label="Content">
        {failed && <p role="alert">The whole result could not be loaded. Close this window and open it again.</p>}
        {!failed && !loaded && <p>Loading…</p>}
        {loaded && <Content {...loaded} view={view} />}
      </div>
    </dialog>
  );
}

function Content({ text, value, view }: { text: string; value: unknown; view: View }) {
  if (view === "Tree") return <Tree name="" value={value} open />;
  if (view === "Table") return <Table rows={value as Row[]} />;
  return <pre class="data">{view === "Diff" ? text.split("\n").map(changed) : text}</pre>;
}

const CHANGES = new Map([
  ["+", "hljs-addition"],
  ["-", "hljs-deletion"],
  ["@", "hljs-comment"],
]);
const changed = (line: string) => <span class={CHANGES.get(line.charAt(0))}>{`${line}\n`}</span>;

/** What is in an object or a list is drawn once that is opened. */
function Tree({ name, value, open: first = false }: { name: string; value: unknown; open?: boolean }) {
  const [open, setOpen] = useState(first);
  const label = name && <b>{`${name}: `}</b>;
  if (value === null || typeof value !== "object") return <p class="leaf">{[label, JSON.stringify(value)]}</p>;
  const entries = Object.entries(value);
  return (
    <details open={open} onToggle={({ currentTarget }) => setOpen(currentTarget.open)}>
      <summary>
        {label}
        <span class="hint">{Array.isArray(value) ? `list of ${entries.length}` : `${entries.length} fields`}</span>
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
          <tr>{columns.map((name) => <th key={name}>{name}</th>)}</tr>
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
