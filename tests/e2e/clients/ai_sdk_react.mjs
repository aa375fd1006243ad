// The chat of `@ai-sdk/react`, as `useChat` has it, with the transport of `ai`; without a browser.
import { answers, asked, load } from "./driver.mjs";

const { Chat } = load("@ai-sdk/react");
const { DefaultChatTransport, lastAssistantMessageIsCompleteWithApprovalResponses } = load("ai");
const headers = { Authorization: `Bearer ${asked.key}`, ...asked.headers };
let messages = [];
let ids = 0;

await answers(async (question, url, cut) => {
  const chat = new Chat({
    id: asked.chat,
    messages,
    generateId: () => `message-${ids++}`,
    transport: new DefaultChatTransport({ api: `${url}/v1/ai-sdk/chat?v=7`, headers, body: { model: asked.model } }),
    sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
  });
  const text = () => chat.lastMessage.parts.map((part) => (part.type === "text" ? part.text : "")).join("");
  const until = async (condition) => {
    while (!condition()) await new Promise((go) => setTimeout(go, 5));
  };
  const running = chat.sendMessage({ text: question });
  if (cut) {
    await until(() => chat.error || (chat.lastMessage?.role === "assistant" && text()));
    await chat.stop(); // closes the connection
  }
  await running;
  if (chat.error) throw chat.error;
  const waits = chat.lastMessage.parts.find((part) => part.state === "approval-requested");
  if (waits) {
    await chat.addToolApprovalResponse({ id: waits.approval.id, approved: asked.approves });
    await until(() => chat.status === "ready" && chat.lastMessage.metadata.reason);
  }
  messages = chat.messages;
  return { text: text(), tokens: chat.lastMessage.metadata.usage?.outputTokens };
});
