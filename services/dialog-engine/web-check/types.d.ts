/** The types of the page's modules, for its type check only: `types.d.ts` is never served. Field names are the protocol's. */

interface Usage {
  inputTokens?: number;
  outputTokens?: number;
  estimated?: boolean;
}

interface Approval {
  status: string;
  policy?: string;
  hash?: string;
  expiresAt?: string;
  decidedAt?: string;
  reason?: string;
  tool?: string;
}

interface Media {
  mimeType: string;
  url: string;
}

interface ResourceLink {
  uri: string;
  name?: string;
  title?: string;
  mimeType?: string;
  description?: string;
}

interface Result {
  text?: string;
  truncated?: boolean;
  textUrl?: string;
  media?: Media[];
  links?: ResourceLink[];
}

/** One tool call as its card shows it. */
interface Call {
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
  progress?: { value?: number; total?: number; message?: string } | null;
  waitsFor?: string | null;
  durationMs?: number;
  result?: Result;
  error?: { code?: string; message?: string };
  /** Read from the stored messages, not from the events of a running turn. */
  past?: boolean;
}

/** An item of the conversation. Which fields it has besides `key` and `kind` depends on its kind: see state.js. */
interface Item {
  key: string;
  kind: string;
  turnId?: string | null;
  text: string;
  open: boolean;
  messageId?: number;
  call: Call;
  callKey: string;
  code: string;
  message: string;
  reason: string;
  count: number;
}

type NewItem = Partial<Item> & { kind: string };

interface Outcome {
  reason: string;
  usage?: Usage;
  ttftMs?: number;
  model?: string;
}

/** All that the page shows of a conversation. */
interface State {
  sessionId: string | null;
  title: string;
  phase: "idle" | "loading" | "sending" | "running";
  connection: "live" | "reconnecting";
  items: Item[];
  turn: { turnId: string; lastEventId: string | null; stopping: boolean } | null;
  queued: { text: string; turnId: string | null } | null;
  outcome: Outcome | null;
  older: string | null;
  /** How many items were ever created: the source of keys. */
  created: number;
}

/** What happened; the fields besides `type` are listed in `reduce` of state.js. */
interface Action {
  type: string;
  [field: string]: any;
}

interface StoredTurn extends Outcome {
  turnId: string;
  error?: { code: string; message: string };
}

interface StoredMessage {
  role: string;
  content: string;
  turnId: string;
  messageId?: number;
  toolCalls?: Call[];
  interrupted?: boolean;
}

/** The answer of `GET /v1/sessions/{id}/messages`. */
interface History {
  sessionId: string;
  title?: string;
  runningTurnId: string | null;
  messages: StoredMessage[];
  turns?: StoredTurn[];
  nextCursor?: string | null;
}

interface Session {
  sessionId: string;
  title?: string;
  updatedAt: string;
  runningTurnId: string | null;
  awaitsApproval?: boolean;
}

/** An event of a stream, as sse.js reads it. */
interface StreamEvent<Data = any> {
  id: string | null;
  type: string;
  data: Data;
}

/** The model and the tool mode that a message asks for. */
interface Choice {
  model?: string;
  toolMode?: string;
}

/** A turn to follow, and its open stream if there is one. */
interface TurnToFollow {
  turnId: string;
  response: Response | null;
}

interface ToolsInfo {
  enabled: boolean;
  tools?: number;
  exposure?: string;
}

type Decide = (call: Call, body: object) => Promise<unknown>;
type FetchBlob = (url: string) => Promise<Blob>;

declare var trustedTypes: { createPolicy(name: string, rules: object): { createHTML(html: string): string } } | undefined;
