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
  const stream = client.chat.completions.stream({ model, messages: said, ...options, ...(tools && { tools }) });
  let text = "";
  for await (const chunk of stream) {
    text += chunk.choices[0]?.delta.content ?? "";
    if (cut && text) return { text }; // closes the connection
  }
  const { choices, usage } = await stream.finalChatCompletion();
  const { content, tool_calls } = choices[0].message;
  said.push({ role: "assistant", content, tool_calls });
  if (!tool_calls?.length) return { text, tokens: usage.completion_tokens };
  for (const call of tool_calls) {
    said.push({ role: "tool", tool_call_id: call.id, content: run(JSON.parse(call.function.arguments)) });
  }
  return answer(elsewhere, false);
}
