// What the clients in Node have in common: what they are asked is JSON on the standard input, and each answer is a line
// of JSON. Argument 1 is the folder with their packages.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

export const load = createRequire(`${process.argv[2]}/package.json`);
export const asked = JSON.parse(readFileSync(0));
// Where a client goes on that has run a tool of its own, or whose user has decided about a call.
export const elsewhere = asked.urls.at(-1);
// What was said in the chat, as the client keeps it.
export const said = [];
let ran = [];

// The client's own tool.
export function run(input) {
  ran.push(input);
  return "teal";
}

// `ask` returns the answer to a question at an engine. With `cut` it leaves as soon as it has some of it. With `again` it
// comes back for the whole answer to the question that it has left.
export async function answers(ask) {
  for (const [place, question] of asked.questions.entries()) {
    let answer;
    const [cut, again] = [place === asked.cut, place === asked.again];
    if (again) said.length = 0;
    try {
      answer = await ask(question, asked.urls[place % asked.urls.length], cut, again);
    } catch (error) {
      answer = { error: `${error.status ?? error.statusCode ?? ""} ${error.message}` };
    }
    console.log(JSON.stringify({ ...answer, ran }));
    ran = [];
  }
  process.exit(0);
}
