"""The turn that answers a user's message, and the request to a model."""

from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

from dialog_engine.model.brought import Brought
from dialog_engine.model.messages import Message
from plugins_contract.catalog import ToolEntry
from plugins_contract.choice import ToolChoice


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as counted by the provider, or in part an estimate.

    Of the input, `cached_tokens` were read from the provider's cache, and `cache_write_tokens` were written to it; of
    the output, `reasoning_tokens` are the model's reasoning. They are 0 where the provider does not report them.
    """

    input_tokens: int = 0
    output_tokens: int = 0
    estimated: bool = False
    cached_tokens: int = 0
    cache_write_tokens: int = 0
    reasoning_tokens: int = 0

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.estimated or other.estimated,
            self.cached_tokens + other.cached_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
        )

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.estimated,
            self.cached_tokens - other.cached_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
        )


@dataclass(slots=True)
class Meter:
    """What one reply has cost so far, also when it is stopped: the client and the side band write it."""

    reported: Usage = Usage()
    """What the provider has reported; estimated if pieces of the reply came after that."""
    read: int = 0
    """Bytes of the reply that have arrived: text, reasoning and complete calls."""
    room: float = inf
    """The tokens of the context that the conversation was cut to."""

    @property
    def begun(self) -> bool:
        """Whether anything of the reply has arrived."""
        return self.read > 0 or self.reported != Usage()


@dataclass(frozen=True, slots=True)
class Choice:
    """The choices of a request; empty means the configured default.

    `model` is a configured model, `provider:model`; `tool_mode` is how it calls tools; `tools` are those that it may
    use, None for all of them.
    """

    model: str = ""
    tool_mode: str = ""
    tools: ToolChoice | None = None


class ResetReason(StrEnum):
    """Why the events of a turn that a client has received do not simply continue."""

    RESTART = "restart"
    """The engine was restarted."""
    ADOPTION = "adoption"
    """The engine that ran the turn has died or was stopped, and another one has adopted it."""
    RECOVERY = "recovery"
    """The engine runs on, and had not known that it owned the turn: the database's answer to it was lost."""
    LOG_LOST = "log_lost"
    """A part of the turn's log is lost, or is not kept any more."""


@dataclass(frozen=True, slots=True)
class Leaving:
    """A turn is to be cancelled `seconds` after its last reader has left. `asleep`: only when somebody has read it
    again, because it has waited for its user meanwhile."""

    seconds: float
    asleep: bool = False


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and everything that answers it.

    `epoch` rises each time an engine adopts the turn, and `resumed` is why the last epoch is not the first. `rounds` is
    how many rounds of tool calls were committed in earlier epochs, `calls` how many calls they had, and `usage` is
    their cost. `roles` are those that the sender had when the turn began.
    """

    turn_id: str
    session_id: str
    subject: str
    epoch: int = 1
    rounds: int = 0
    traceparent: str | None = None
    usage: Usage = Usage()
    choice: Choice = Choice()
    roles: tuple[str, ...] = ()
    key_id: str = ""
    """The credential of the request that started it, for the audit. Empty in a turn that was adopted."""
    credential: str = ""
    """The same for `Credentials`; it is kept when the turn is adopted."""
    expires_at: float | None = None
    """When the sender must prove again who it is, in Unix seconds; known until the turn begins."""
    waits: bool = False
    """Whether it was accepted as a message that waits for the turns before it, and does not run yet."""
    calls: int = 0
    resumed: ResetReason = ResetReason.RESTART
    model: str = ""
    """The one that wrote the last of these rounds."""
    ttft_ms: int | None = None
    """When its first token came, in milliseconds from its beginning, where that was stored as it was parked."""
    parent: str | None = None
    """The turn that it shall follow, '' for none; None for the last one of the path that is shown when it begins."""
    brought: Brought | None = None
    """What its request has brought, without what was said before and without images once it is committed; None for
    nothing."""
    leaving: Leaving | None = None
    """None: it goes on when nobody reads it."""

    @property
    def of_own_api(self) -> bool:
        """Whether its request is one of the engine's own API. Any number of turns of others may follow one."""
        return self.brought is None or self.brought.own_api

    def client_tools(self) -> dict[str, ToolEntry]:
        """The tools that its client runs, by name."""
        return {each.name: each.entry() for each in self.brought.tools} if self.brought else {}


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """One request to a model. With `tools` empty it can only answer in text.

    Tool calls are made for `turn`. `answer_only` declares the tools and forbids calling them: some providers require
    the declaration when the history has calls, and need it for their cache. The model stops before it writes one of
    `stop`, and has to call `must_call`, a tool or ANY_TOOL.
    """

    messages: tuple[Message, ...]
    turn: Turn
    tools: tuple[ToolEntry, ...] = ()
    answer_only: bool = False
    stop: tuple[str, ...] = ()
    must_call: str = ""
    left_out: int = 0
    """How many messages of the user and the model are missing, because the conversation is too long."""
    meter: Meter = field(default_factory=Meter, compare=False)


# --- Texts without U+0000, which PostgreSQL cannot store ---

REPLACEMENT = "\ufffd"


def storable(text: str) -> str:
    """The text without U+0000."""
    return text.replace("\0", REPLACEMENT) if "\0" in text else text


def storable_json(text: str) -> str:
    """The JSON text, in which no string has U+0000, as it is or escaped. The text need not be valid JSON."""
    text = storable(text)
    if r"\u0000" not in text:
        return text
    # An escaped backslash is set aside as U+0000, which the text has not: what follows it is no escape.
    return text.replace(r"\\", "\0").replace(r"\u0000", REPLACEMENT).replace("\0", r"\\")
