// The packages `@ai-sdk/openai-compatible` and `ai`: a model of the AI SDK behind a server of the client's own.
import { answers, asked, elsewhere, load, run, said } from "./driver.mjs";

const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
const { isStepCount, jsonSchema, streamText } = load("ai");
const { key: apiKey, headers, tool } = asked;
const execute = async (input) => run(input);
const tools = tool ? { [tool.name]: { inputSchema: jsonSchema(tool.inputSchema), execute } } : undefined;

function modelAt(url) {
  const own = { name: "callstream", baseURL: `${url}/v1`, apiKey, headers, includeUsage: true };
  return createOpenAICompatible(own)(asked.model);
}

await answers(async (question, url, cut) => {
  said.push({ role: "user", content: question });
  const leaving = new AbortController();
  const prepareStep = ({ stepNumber }) => ({ model: modelAt(stepNumber ? elsewhere : url) });
  const more = { tools, prepareStep, stopWhen: isStepCount(3), abortSignal: leaving.signal, onError() {} };
  const result = streamText({ model: modelAt(url), messages: said, ...more });
  let text = "";
  let tokens = 0;
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
    if (part.type === "finish") tokens = part.totalUsage.outputTokens;
    if (cut && text) leaving.abort();
  }
  said.push({ role: "assistant", content: text });
  return { text, tokens };
});
