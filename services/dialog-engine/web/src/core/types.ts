/** The types of the engine's protocol, as far as the page reads it, and of what the page shows. */

export interface Approval {
  status: string;
  policy?: string;
  hash?: string;
  expiresAt?: string;
  decidedAt?: string;
  reason?: string;
  tool?: string;
}

export interface Media {
  mimeType: string;
  url: string;
}

export interface ResourceLink {
  uri: string;
  name?: string;
  title?: string;
  mimeType?: string;
  description?: string;
}

export interface Result {
  text?: string;
  truncated?: boolean;
  textUrl?: string;
  media?: Media[];
  links?: ResourceLink[];
}

/** A question of a call's server to the person. Its texts are the server's. */
export interface Asked {
  questionId: string;
  status: string;
  kind: string;
  message: string;
  expiresAt?: string;
  answeredAt?: string;
  /** Why it was withdrawn. */
  reason?: string;
  /** Of a form: the flat JSON schema of its fields, and what was answered. */
  schema?: object;
  content?: Record<string, unknown>;
  /** Of the other kind: the address to open. */
  url?: string;
}

/** One tool call as its card shows it. */
export interface Call {
  status: string;
  toolName?: string;
  title?: string;
  server?: string;
  toolCallId?: string;
  correlationId?: string;
  round?: number;
  attempt?: number;
  arguments?: unknown;
  approval?: Approval | null;
  questions?: Asked[];
  progress?: { value?: number; total?: number; message?: string } | null;
  waitsFor?: string | null;
  /** Its server has lost what it kept before this call. */
  stateLost?: boolean;
  durationMs?: number;
  result?: Result;
  error?: { code?: string; message?: string };
  /** When the model called it, in Unix milliseconds on this machine's clock, where that was read with the messages. */
  began?: number;
  /** Read from the stored messages, not from the events of a running turn. */
  past?: boolean;
}

/** What every item of the conversation has: a key that never changes, and the turn that it belongs to. */
interface Keyed {
  key: string;
  turnId?: string | null;
}
/** `turnId` is that of its answer, once known; `at` when it was sent, in Unix milliseconds. */
export type UserItem = Keyed & { kind: "user"; text: string; at?: number };
/** `open` while pieces still arrive. */
export type ReasoningItem = Keyed & { kind: "reasoning"; text: string; open: boolean };
/** `messageId` is that of the finished message. */
export type AnswerItem = Keyed & { kind: "answer"; text: string; open: boolean; messageId?: number };
export type ToolItem = Keyed & { kind: "tool"; callKey: string; call: Call };
export type ErrorItem = Keyed & { kind: "error"; code: string; message: string };
/** That `count` messages were left out, or that there is no answer. */
export type NoteItem = Keyed & { kind: "note"; reason: string; count?: number };
/** The end of a turn, and what it cost. */
export type EndItem = Keyed & { kind: "end" } & Outcome;
export type Item = UserItem | ReasoningItem | AnswerItem | ToolItem | ErrorItem | NoteItem | EndItem;
type Without<T> = T extends Keyed ? Omit<T, "key"> : never;
export type NewItem = Without<Item>;

export interface Outcome {
  reason: string;
  usage?: { inputTokens?: number; outputTokens?: number; estimated?: boolean };
  ttftMs?: number;
  model?: string;
}

/**
 * A message that waits for the turns before it, without a `turnId` while it is sent to the engine; `held`: why it does
 * not begin until its user says so.
 */
export interface Waiting {
  turnId: string | null;
  message: string;
  held: string | null;
}

/** All that the page shows of a conversation; `items` from top to bottom. */
export interface State {
  sessionId: string | null;
  title: string;
  phase: "idle" | "loading" | "sending" | "running";
  /** "waiting": other tabs have all places from which a turn may be followed. */
  connection: "live" | "reconnecting" | "waiting";
  items: Item[];
  /** While one runs. */
  turn: { turnId: string; lastEventId: string | null; stopping: boolean } | null;
  /** Which tools the messages of the conversation may use; null: all. */
  tools: ToolChoice | null;
  /** The messages that wait in the conversation, as the engine has them, in their order. */
  waiting: Waiting[];
  /** Of each turn with other versions, all of them in the order in which they began, by its id. */
  versions: Readonly<Record<string, string[]>>;
  /** When the calls of the running turn began that were stored when it was loaded: see `Call`. By their keys. */
  began: Readonly<Record<string, number>>;
  /** The cursor of the messages before those on the screen. */
  older: string | null;
  /** How many items were ever created: the source of keys. */
  created: number;
}

/** What happened. */
export type Action =
  | { type: "cleared" | "rejected" | "detached" }
  | { type: "loading" | "named"; sessionId: string }
  | { type: "loaded" | "older"; history: History }
  | { type: "submitted"; text: string; at?: number }
  | { type: "waiting"; waiting: Waiting[] }
  | { type: "tools"; tools: ToolChoice | null }
  | { type: "attached"; turnId: string }
  | { type: "connection"; connection: State["connection"] }
  | { type: "stopping"; stopping: boolean }
  | { type: "event"; event: StreamEvent };

export interface StoredTurn extends Outcome {
  turnId: string;
  /** All turns that follow the same one. */
  siblings?: string[];
  messagesLeftOut?: number;
  error?: { code: string; message: string };
}

export interface StoredMessage {
  role: string;
  content: string;
  reasoning?: string;
  createdAt?: string;
  turnId: string;
  messageId?: number;
  toolCalls?: Call[];
  interrupted?: boolean;
}

/** The answer of `GET /v1/sessions/{id}/messages`. */
export interface History {
  sessionId: string;
  title?: string;
  runningTurnId: string | null;
  /** The last turn that is shown; another one may run. */
  leafTurnId?: string | null;
  messages: StoredMessage[];
  turns?: StoredTurn[];
  nextCursor?: string | null;
  tools?: ToolChoice | null;
  waiting?: Waiting[];
  /** How much later it is on this machine's clock than on the server's, in milliseconds. */
  aheadMs?: number;
}

export interface Session {
  sessionId: string;
  title?: string;
  updatedAt: string;
  runningTurnId: string | null;
  leafTurnId?: string | null;
  tools?: ToolChoice | null;
  awaitsApproval?: boolean;
  awaitsAnswer?: boolean;
  awaitsClient?: boolean;
  waiting?: number;
}

/** Whether the tools of an MCP server can be used. */
export interface ServerState {
  server: string;
  title?: string;
  state: string;
  error?: string | null;
  breaker?: string;
}

/** A call of `GET /v1/turns/{id}/effects`: it stays as it is, whatever is asked instead. */
export interface MadeCall {
  toolName: string;
  correlationId: string;
  status: string;
}

/** An event of a stream, as sse.ts reads it; `data` is JSON of a server that may be newer than this page. */
// eslint-disable-next-line @typescript-eslint/no-explicit-any
export interface StreamEvent<Data = any> {
  id: string | null;
  type: string;
  data: Data;
}

/** What a message asks for; a field that stays at its default is left out. */
export interface Choice {
  model?: string;
  toolMode?: string;
  /** Without it the tools of its conversation. */
  tools?: ToolChoice;
}

/** Which tools may be used: those of these servers, or all; not those of which `deny` has "server/tool". */
export interface ToolChoice {
  servers?: string[];
  deny?: string[];
}

/** A turn to follow, and its open stream if there is one. */
export interface TurnToFollow {
  turnId: string;
  response: Response | null;
}

/** The answer of `GET /v1/about`. */
export interface About {
  model: { id: string; label?: string; scripted: boolean };
  version: string;
  mcp: { enabled: boolean; tools?: number; exposure?: string };
}

/** The answer of `GET /v1/models`. */
export interface Offer {
  models: { name: string; label: string; default: boolean }[];
  toolModes: string[];
}
