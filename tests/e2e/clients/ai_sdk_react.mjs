// The chat of `@ai-sdk/react`, as `useChat` has it, with the transport of `ai`; without a browser.
import { answers, asked, elsewhere, load, run } from "./driver.mjs";

const { Chat } = load("@ai-sdk/react");
const ai = load("ai");
const { key, version, tool, model } = asked;
const headers = { Authorization: `Bearer ${key}`, ...asked.headers };
const body = { model, ...(tool && { clientTools: [tool] }) };
const complete = [ai.lastAssistantMessageIsCompleteWithApprovalResponses, ai.lastAssistantMessageIsCompleteWithToolCalls];
let messages = [];
let ids = 0;

await answers(async (question, url, cut, again) => {
  const api = `${url}/v1/ai-sdk/chat`;
  let posts = 0; // the first one asks the question
  const chat = new Chat({
    id: asked.chat,
    messages,
    generateId: () => `message-${ids++}`,
    transport: new ai.DefaultChatTransport({
      api: `${api}?v=${version}`,
      headers,
      body,
      fetch(address, init) {
        const goesOn = init.method === "POST" && posts++;
        return fetch(goesOn ? address.replace(url, elsewhere) : address, init);
      },
      prepareReconnectToStreamRequest: ({ id }) => ({ api: `${api}/${id}/stream?v=${version}` }),
    }),
    sendAutomaticallyWhen: (given) => complete.some((isComplete) => isComplete?.(given)),
    onToolCall({ toolCall: { toolCallId, toolName, input, dynamic } }) {
      if (dynamic) return;
      const output = { tool: toolName, toolCallId, output: run(input) };
      chat.addToolOutput ? chat.addToolOutput(output) : chat.addToolResult(output);
    },
  });
  const text = () => chat.lastMessage.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
  const until = async (condition) => {
    while (!condition()) await new Promise((go) => setTimeout(go, 5));
  };
  if (again) chat.messages = messages.slice(0, 1); // as if the page was loaded again
  const running = again ? chat.resumeStream() : chat.sendMessage({ text: question });
  const called = () => chat.lastMessage.parts.some((part) => part.type === "dynamic-tool");
  if (cut) {
    await until(() => chat.error || (chat.lastMessage?.role === "assistant" && (asked.stops ? called() : text())));
    if (asked.stops) await fetch(`${api}/${asked.chat}/stop`, { method: "POST", headers });
    else await chat.stop(); // closes the connection
  }
  await running;
  const ended = () => chat.error || (chat.status === "ready" && chat.lastMessage.metadata?.reason);
  const waits = chat.lastMessage.parts.find((part) => part.state === "approval-requested");
  if (waits) await chat.addToolApprovalResponse({ id: waits.approval.id, approved: asked.approves });
  if (waits || tool) await until(ended);
  if (chat.error) throw chat.error;
  messages = chat.messages;
  return { text: text(), tokens: chat.lastMessage.metadata?.usage?.outputTokens };
});
