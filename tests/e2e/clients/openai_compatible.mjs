// The packages `@ai-sdk/openai-compatible` and `ai`: a model of the AI SDK behind a server of the client's own.
import { answers, asked, load } from "./driver.mjs";

const { createOpenAICompatible } = load("@ai-sdk/openai-compatible");
const { streamText } = load("ai");
const { key: apiKey, headers } = asked;
const messages = [];

await answers(async (question, url, cut) => {
  const own = { name: "callstream", baseURL: `${url}/v1`, apiKey, headers, includeUsage: true };
  const chosen = createOpenAICompatible(own)(asked.model);
  messages.push({ role: "user", content: question });
  const leaving = new AbortController();
  const result = streamText({ model: chosen, messages, abortSignal: leaving.signal, onError() {} });
  let text = "";
  let tokens = 0;
  for await (const part of result.fullStream) {
    if (part.type === "error") throw part.error;
    if (part.type === "text-delta") text += part.text;
    if (part.type === "finish") tokens = part.totalUsage.outputTokens;
    if (cut && text) leaving.abort();
  }
  messages.push({ role: "assistant", content: text });
  return { text, tokens };
});
