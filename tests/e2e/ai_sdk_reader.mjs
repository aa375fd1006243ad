// What `ai` makes of streams: node ai_sdk_reader.mjs <folder with ai> <version> <file with streams, as JSON>
//
// Prints the text and the states of the calls of each message. A chunk that the package does not know ends it.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, version, file] = process.argv.slice(2);
const entry = createRequire(`${folder}/package.json`).resolve("ai");
const { DefaultChatTransport, readUIMessageStream } = await import(
  pathToFileURL(entry.replace(/index\.js$/, version < 7 ? "index.mjs" : "index.js"))
);
const shown = [];
for (const body of JSON.parse(readFileSync(file))) {
  const transport = new DefaultChatTransport({ fetch: async () => new Response(body) });
  const stream = await transport.sendMessages({ trigger: "submit-message", chatId: "chat", messages: [] });
  let last;
  const onError = (error) => {
    if (error.message !== "it broke") throw error;
  };
  for await (const message of readUIMessageStream({ stream, onError })) last = message;
  const text = last.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
  const calls = last.parts.filter((part) => part.type === "dynamic-tool").map((part) => part.state);
  shown.push({ id: last.id, text, calls });
}
console.log(JSON.stringify(shown));
