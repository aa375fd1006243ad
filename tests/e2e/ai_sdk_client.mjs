// A page with the Vercel AI SDK, without a browser: `ai`'s own chat and transport. Which calls it makes is argument 4;
// it prints what its chats have at the end of each, as JSON.
//
//   node ai_sdk_client.mjs <folder with ai> <address of the engine> <version> <scenario>
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, engine, version, scenario] = process.argv.slice(2);
const entry = createRequire(`${folder}/package.json`).resolve("ai");
const {
  AbstractChat,
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses,
  lastAssistantMessageIsCompleteWithToolCalls,
} = await import(pathToFileURL(entry.replace(/index\.js$/, version < 7 ? "index.mjs" : "index.js")));

class State {
  messages = [];
  status = "ready";
  error = undefined;
  pushMessage = (message) => (this.messages = [...this.messages, message]);
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (place, message) =>
    (this.messages = [...this.messages.slice(0, place), structuredClone(message), ...this.messages.slice(place + 1)]);
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(id, own = {}, more = {}) {
    const state = new State();
    super({
      id,
      state,
      transport: new DefaultChatTransport({ api: `${engine}/v1/ai-sdk/chat?v=${version}`, ...own }),
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithApprovalResponses,
      ...more,
    });
    this.seen = state;
  }
  get last() {
    return this.seen.messages.at(-1);
  }
  get text() {
    return this.last.parts.filter((part) => part.type === "text").map((part) => part.text).join("");
  }
  get calls() {
    return this.last.parts.filter((part) => part.type === "dynamic-tool");
  }
  say(text, more = {}) {
    return this.sendMessage({ text, ...more });
  }
  shown() {
    const { messages, status, error } = this.seen;
    return { text: this.text, calls: this.calls, messages, status, error: error?.message, metadata: this.last.metadata };
  }
}

async function until(condition) {
  while (!condition()) await new Promise((go) => setTimeout(go, 20));
}

const fresh = (name) => new Chat(`${scenario}-${name}-${version}-${process.pid}`);

async function answered(approved) {
  const chat = fresh("chat");
  await chat.say(`call demo__delete_everything {"token": "${scenario}${version}"}`);
  const asked = structuredClone(chat.calls);
  const { id } = asked[0].approval;
  await chat.addToolApprovalResponse({ id, approved, reason: approved ? undefined : "Not today." });
  await until(() => chat.seen.status === "ready" && chat.text !== "" && chat.calls[0].state.startsWith("output"));
  return { ...chat.shown(), asked };
}

const scenarios = {
  async chat() {
    const chat = fresh("chat");
    await chat.say("What is 2 + 3?");
    await chat.say("What is 40 + 2?");
    return chat.shown();
  },
  async tools() {
    const chat = fresh("chat");
    await chat.say("What time is it in Tokyo and in Paris?");
    return chat.shown();
  },
  async progress() {
    const chat = fresh("chat");
    const running = chat.say("Run a slow job of 1 second in 4 steps");
    await until(() => chat.last?.role === "assistant" && chat.calls[0]?.preliminary);
    const preliminary = structuredClone(chat.calls[0].output);
    await running;
    return { ...chat.shown(), preliminary };
  },
  async client() {
    const inputSchema = { type: "object", properties: { of: { type: "string" } } };
    const own = { body: { clientTools: [{ name: "pick_colour", description: "Picks a colour.", inputSchema }] } };
    const ran = [];
    const chat = new Chat(`client-${version}-${process.pid}`, own, {
      sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
      onToolCall({ toolCall: { toolCallId, toolName, input, dynamic } }) {
        if (dynamic) return;
        ran.push(input);
        const output = { tool: toolName, toolCallId, output: { colour: "teal" } };
        chat.addToolOutput ? chat.addToolOutput(output) : chat.addToolResult(output);
      },
    });
    await chat.say('call pick_colour {"of": "tea"}');
    await until(() => chat.seen.status === "ready" && chat.text !== "");
    return { ...chat.shown(), ran };
  },
  approve: () => answered(true),
  refuse: () => answered(false),
  async stop() {
    const chat = fresh("chat");
    const running = chat.say("Run a slow job of 30 seconds in 60 steps");
    await until(() => chat.last?.role === "assistant" && chat.calls.length > 0);
    const answer = await fetch(`${engine}/v1/ai-sdk/chat/${chat.id}/stop`, { method: "POST" });
    await running;
    return { ...chat.shown(), answer: answer.status };
  },
  async resume() {
    const chat = fresh("chat");
    const running = chat.say("Run a slow job of 3 seconds in 6 steps");
    await until(() => chat.last?.role === "assistant" && chat.calls.length > 0);
    await chat.stop(); // closes the connection
    await running;
    const again = new Chat(chat.id);
    again.messages = chat.messages.slice(0, 1);
    await again.resumeStream();
    return again.shown();
  },
  async restart() {
    const chat = fresh("chat");
    await chat.say("Run a slow job of 10 seconds in 20 steps");
    const cut = chat.shown();
    let again = chat;
    while (again.last?.metadata?.reason === undefined) {
      again = new Chat(chat.id); // the page is loaded again
      again.messages = chat.messages.slice(0, 1);
      await again.resumeStream();
      await new Promise((go) => setTimeout(go, 100));
    }
    return { ...again.shown(), cut };
  },
  async regenerate() {
    const chat = fresh("chat");
    await chat.say("What is 40 + 2?");
    const first = chat.last.id;
    await chat.regenerate();
    return { ...chat.shown(), first };
  },
  async error() {
    const chat = new Chat(`error-${version}`, { body: { model: "none" } });
    await chat.say("Hi");
    return { error: chat.seen.error?.message, status: chat.seen.status };
  },
};

console.log(JSON.stringify(await scenarios[scenario]()));
process.exit(0);
