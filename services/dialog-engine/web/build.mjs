/**
 * Builds the page: `node build.mjs FOLDER`. The same source and packages give the same bytes, in any folder.
 *
 * The name of each file but index.html has a hash of what is in it, so that a browser may keep it for a year.
 */

import { createHash } from "node:crypto";
import { mkdir, readdir, readFile, rm, writeFile } from "node:fs/promises";
import { basename, dirname, extname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const HERE = dirname(fileURLToPath(import.meta.url));
const COMMON = {
  absWorkingDir: HERE,
  bundle: true,
  minify: true,
  write: false,
  metafile: true,
  charset: "utf8",
  legalComments: "none",
  outdir: "out",
  target: "es2022",
  entryNames: "[name]-[hash]",
  chunkNames: "[name]-[hash]",
  alias: { "linkify-it": "./src/markdown/no-linkify.ts" },
  jsx: "automatic",
  jsxImportSource: "preact",
  logLevel: "warning",
};

/** The name of each built file, with its content. */
const files = new Map();
/** The folders of packages of which something is in a built file. */
const packages = new Set();

/** Bundles one entry; returns the address of its file, and those of the files that it needs at once. */
async function bundle(entry, options) {
  const { outputFiles, metafile } = await build({ ...COMMON, ...options, entryPoints: [`src/${entry}`] });
  for (const { path, contents } of outputFiles) files.set(basename(path), contents);
  for (const { inputs } of Object.values(metafile.outputs))
    for (const [input, { bytesInOutput }] of Object.entries(inputs)) {
      const found = /^(.*node_modules\/(?:@[^/]+\/)?[^/]+)\//.exec(input);
      if (found && bytesInOutput > 0) packages.add(found[1]);
    }
  const [made, { imports }] = Object.entries(metafile.outputs).find(([, { entryPoint }]) => entryPoint === `src/${entry}`);
  const needed = imports.filter(({ kind }) => kind === "import-statement").map(({ path }) => `/assets/${basename(path)}`);
  return [`/assets/${basename(made)}`, needed];
}

/** Adds a file under a name with its hash; returns its address. */
function add(name, contents) {
  const hash = createHash("sha256").update(contents).digest("hex").slice(0, 8).toUpperCase();
  const hashed = `${basename(name, extname(name))}-${hash}${extname(name)}`;
  files.set(hashed, contents);
  return `/assets/${hashed}`;
}

const source = (name) => readFile(join(HERE, "src", name), "utf8");

const icon = add("icon.svg", await source("icon.svg"));
const pictures = { icon };
for (const size of [192, 512]) pictures[`icon${size}`] = add(`icon-${size}.png`, await readFile(join(HERE, `src/icon-${size}.png`)));
const manifest = add("page.webmanifest", (await source("page.webmanifest")).replace(/%(\w+)%/g, (_, name) => pictures[name]));
const [worker] = await bundle("worker/worker.ts", { format: "esm", splitting: true });
const define = { WORKER_ADDRESS: JSON.stringify(worker), ICON_ADDRESS: JSON.stringify(icon) };
const [main, needed] = await bundle("main.tsx", { format: "esm", splitting: true, define });
const [theme] = await bundle("page/theme.ts", { format: "iife" });
const [style] = await bundle("style.css", {});
const preload = [main, ...needed].map((address) => `<link rel="modulepreload" href="${address}">`).join("\n    ");
const addresses = { icon, manifest, main, preload, theme, style };
files.set("index.html", (await source("index.html")).replace(/%(\w+)%/g, (_, name) => addresses[name]));

const facts = await Promise.all(
  [...packages].sort().map(async (folder) => {
    const { name, version, license } = JSON.parse(await readFile(join(HERE, folder, "package.json"), "utf8"));
    const found = (await readdir(join(HERE, folder))).filter((file) => /^licen[cs]e/i.test(file)).sort()[0];
    if (!found) throw new Error(`the licence of ${name} is missing`);
    return { name, version, license, text: await readFile(join(HERE, folder, found), "utf8") };
  }),
);
const named = facts.map(({ name, version, license }) => ({ name, version, license }));
files.set("packages.json", `${JSON.stringify(named, null, 2)}\n`);
const texts = facts.map(({ name, version, license, text }) => `${name} ${version} (${license})\n\n${text.trim()}\n`);
files.set("LICENSES.txt", `The page has parts of these packages.\n\n${texts.join(`\n${"-".repeat(80)}\n\n`)}`);

const folder = process.argv[2];
if (!folder) throw new Error("usage: node build.mjs FOLDER");
await rm(folder, { recursive: true, force: true });
await mkdir(folder, { recursive: true });
await Promise.all([...files].map(([name, contents]) => writeFile(join(folder, name), contents)));
