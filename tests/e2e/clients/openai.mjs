// The package `openai`.
import { answers, asked, elsewhere, load, run, said } from "./driver.mjs";

const OpenAI = load("openai");
const { model, tool } = asked;
const tools = tool && [{ type: "function", function: { name: tool.name, parameters: tool.inputSchema } }];

await answers((question, url, cut) => {
  said.push({ role: "user", content: question });
  return answer(url, cut);
});

async function answer(url, cut) {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: asked.key, defaultHeaders: asked.headers });
  const options = { stream: true, stream_options: { include_usage: true } };
  const calls = [];
  let text = "";
  let tokens = 0;
  for await (const chunk of await client.chat.completions.create({ model, messages: said, tools, ...options })) {
    text += chunk.choices[0]?.delta.content ?? "";
    calls.push(...(chunk.choices[0]?.delta.tool_calls ?? []));
    tokens = chunk.usage?.completion_tokens ?? tokens;
    if (cut && text) return { text }; // closes the connection
  }
  said.push({ role: "assistant", content: text, ...(calls.length && { tool_calls: calls }) });
  if (!calls.length) return { text, tokens };
  for (const call of calls) {
    said.push({ role: "tool", tool_call_id: call.id, content: run(JSON.parse(call.function.arguments)) });
  }
  return answer(elsewhere, false);
}
