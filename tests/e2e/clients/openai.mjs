// The package `openai`.
import { answers, asked, load } from "./driver.mjs";

const OpenAI = load("openai");
const messages = [];

await answers(async (question, url, cut) => {
  const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: asked.key, defaultHeaders: asked.headers });
  messages.push({ role: "user", content: question });
  const body = { model: asked.model, messages, stream: true, stream_options: { include_usage: true } };
  let text = "";
  let tokens = 0;
  for await (const chunk of await client.chat.completions.create(body)) {
    text += chunk.choices[0]?.delta.content ?? "";
    tokens = chunk.usage?.completion_tokens ?? tokens;
    if (cut && text) break; // closes the connection
  }
  messages.push({ role: "assistant", content: text });
  return { text, tokens };
});
