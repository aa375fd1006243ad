// The package `openai`, with Responses: the conversation is known by the id of its last response.
import { answers, asked, elsewhere, load, run, said } from "./driver.mjs";

const OpenAI = load("openai");
const { model, tool } = asked;
const tools = tool && [{ type: "function", name: tool.name, parameters: tool.inputSchema, strict: false }];
// The response that the client has left: its id, the number of its last event, and its text so far.
let left;

await answers((question, url, cut, again) => (again ? rest(url) : answer(url, question, cut)));

function clientAt(url) {
  return new OpenAI({ baseURL: `${url}/v1`, apiKey: asked.key, defaultHeaders: asked.headers });
}

// The answer that was left, with what follows on its last event.
async function rest(url) {
  let { id, number, text } = left;
  for await (const event of await clientAt(url).responses.retrieve(id, { stream: true, starting_after: number })) {
    if (event.type === "response.output_text.delta") text += event.delta;
    if (event.type === "response.completed") return { text };
  }
  throw new Error("the stream has no end");
}

async function answer(url, input, cut) {
  const wanted = { model, input, tools, previous_response_id: said.at(-1), stream: true };
  let text = "";
  for await (const event of await clientAt(url).responses.create(wanted)) {
    if (event.type === "response.created") said.push(event.response.id);
    if (event.type === "response.output_text.delta") text += event.delta;
    if (cut && text) {
      left = { id: said.at(-1), number: event.sequence_number, text };
      return { text }; // closes the connection
    }
    if (event.type !== "response.completed") continue;
    const given = event.response.output.map(answerTo).filter(Boolean);
    if (given.length) return answer(elsewhere, given, false);
    return { text, tokens: event.response.usage.output_tokens };
  }
  throw new Error("the stream has no end");
}

// What the user says to a request for approval, or the tool of the client to its call.
function answerTo(item) {
  if (item.type === "mcp_approval_request") {
    return { type: "mcp_approval_response", approval_request_id: item.id, approve: asked.approves };
  }
  return item.type === "function_call"
    ? { type: "function_call_output", call_id: item.call_id, output: run(JSON.parse(item.arguments)) }
    : undefined;
}
