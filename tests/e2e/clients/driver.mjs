// What the clients in Node have in common: what they are asked is JSON on the standard input, and each answer is a line
// of JSON. Argument 1 is the folder with their packages.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";

export const load = createRequire(`${process.argv[2]}/package.json`);
export const asked = JSON.parse(readFileSync(0));

// `ask` returns the answer to a question at an engine. With `cut` it leaves as soon as it has some of it.
export async function answers(ask) {
  for (const [place, question] of asked.questions.entries()) {
    let answer;
    try {
      answer = await ask(question, asked.urls[place % asked.urls.length], place === asked.cut);
    } catch (error) {
      answer = { error: `${error.status ?? error.statusCode ?? ""} ${error.message}` };
    }
    console.log(JSON.stringify(answer));
  }
  process.exit(0);
}
