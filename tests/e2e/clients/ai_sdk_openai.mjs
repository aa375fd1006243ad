// The packages `@ai-sdk/openai` and `ai`: a model of the AI SDK behind a server of the client's own, by Responses. The
// conversation is known by the ids of its items, which the package sends again.
import { answers, asked, elsewhere, load, run, said } from "./driver.mjs";

const { createOpenAI } = load("@ai-sdk/openai");
const { isStepCount, jsonSchema, streamText } = load("ai");
const { approves: approved, headers, key: apiKey, tool } = asked;
const execute = async (input) => run(input);
const tools = tool ? { [tool.name]: { inputSchema: jsonSchema(tool.inputSchema), execute } } : undefined;

await answers((question, url, cut) => {
  said.push({ role: "user", content: question });
  return answer(url, cut);
});

function modelAt(url) {
  return createOpenAI({ baseURL: `${url}/v1`, apiKey, headers })(asked.model);
}

async function answer(url, cut) {
  const leaving = new AbortController();
  const prepareStep = ({ stepNumber }) => ({ model: modelAt(stepNumber ? elsewhere : url) });
  const more = { tools, prepareStep, stopWhen: isStepCount(3), abortSignal: leaving.signal, onError() {} };
  const result = streamText({ model: modelAt(url), messages: said, ...more });
  const open = [];
  let [text, tokens, providerOptions] = ["", 0];
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-start") providerOptions = part.providerMetadata;
    if (part.type === "text-delta") text += part.text;
    if (part.type === "tool-approval-request") open.push(part.approvalId);
    if (part.type === "finish") tokens = part.totalUsage.outputTokens;
    if (cut && text) leaving.abort();
  }
  if (cut) {
    said.push({ role: "assistant", content: [{ type: "text", text, providerOptions }] });
    return { text };
  }
  said.push(...(await result.response).messages);
  if (!open.length) return { text, tokens };
  const content = open.map((approvalId) => ({ type: "tool-approval-response", approvalId, approved, providerExecuted: true }));
  said.push({ role: "tool", content });
  return answer(elsewhere, false);
}
