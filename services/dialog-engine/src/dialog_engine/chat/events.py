"""The events of a turn as clients get them: their names and JSON, frames with ids, and cursors to resume from."""

import re
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import msgspec

from dialog_engine.model import (
    AnsweredBy,
    ApprovalStep,
    Done,
    MessageFinished,
    QuestionStep,
    ReasoningDelta,
    Reset,
    ResourceUpdated,
    RoundComplete,
    TextDelta,
    ToolCall,
    ToolStep,
    Turn,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    Usage,
    WaitingForUser,
    Withdrawn,
)

TEXT = "text"
REASONING = "reasoning"
MESSAGE = "message"
ERROR = "error"
DONE = "done"
RESET = "reset"
WITHDRAWN = "withdrawn"


def encode(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """The name of `event` and its data."""
    match event:
        case Withdrawn(turn_id):
            return WITHDRAWN, {"turnId": turn_id}
        case TextDelta(text):
            return TEXT, {"delta": text}
        case ReasoningDelta(text):
            return REASONING, {"delta": text}
        case TurnStarted(turn_id, session_id):
            return "control", {"type": "turn", "status": "started", "turnId": turn_id, "sessionId": session_id}
        case AnsweredBy(model, left_out):
            return "control", {"type": "decision", "model": model, "messagesLeftOut": left_out}
        case MessageFinished():
            return MESSAGE, _message(event)
        case ToolStep(status, call, server, number, details):
            return "control", {"type": "tool", "status": status, **_of_call(call, server, number), **details}
        case ApprovalStep(status, call, server, number, details):
            return "control", {"type": "approval", "status": status, **_of_call(call, server, number), **details}
        case QuestionStep(status, call, server, number, details):
            return "control", {"type": "question", "status": status, **_of_call(call, server, number), **details}
        case WaitingForUser(approvals, questions, calls, client_calls, usage, hashes):
            counted: dict[str, Any] = {"approvals": approvals}
            counted |= {"questions": len(questions), "questionIds": [*questions]} if questions else {}
            counted |= {"clientCalls": client_calls} if client_calls else {}
            spent = {"usage": usage_view(usage)} if usage else {}
            known = {"hashes": dict(hashes)} if hashes else {}
            return "control", {"type": "waiting", **counted, "calls": [*calls], **known, **spent}
        case ResourceUpdated(server, uri):
            return "control", {"type": "resource", "status": "updated", "server": server, "uri": uri}
        case RoundComplete(number):
            return "control", {"type": "tools", "status": "complete", "round": number}
        case Reset(reason, events):
            return RESET, {
                "reason": reason,
                "events": [dict(zip(("event", "data"), encode(e), strict=True)) for e in events],
            }
        case TurnFailed(code, message):
            return ERROR, {"code": code, "message": message}
        case Done(turn_id, reason, usage, ttft_ms, model, tool_calls, by_model=by_model):
            spent = {"usage": usage_view(usage), "toolCalls": tool_calls, "ttftMs": ttft_ms}
            models = {name: usage_view(each) for name, each in by_model.items()}
            known = ({"model": model} if model else {}) | ({"models": models} if models else {})
            return DONE, {"reason": reason, **spent, "turnId": turn_id, **known}


def usage_view(usage: Usage) -> dict[str, int | bool]:
    """Usage as the protocol shows it."""
    counted: dict[str, int | bool] = {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}
    known = {
        "estimated": usage.estimated,
        "cachedTokens": usage.cached_tokens,
        "cacheWriteTokens": usage.cache_write_tokens,
        "reasoningTokens": usage.reasoning_tokens,
    }
    return counted | {name: value for name, value in known.items() if value}


def _of_call(call: ToolCall, server: str, round_number: int) -> dict[str, Any]:
    return {
        "toolName": call.tool_name,
        "server": server,
        "toolCallId": call.tool_call_id,
        "correlationId": call.correlation_id,
        "round": round_number,
    }


def _message(event: MessageFinished) -> dict[str, Any]:
    data: dict[str, Any] = {"messageId": event.message_id, "role": "assistant", "content": event.message.content}
    if event.message.tool_calls:
        data["toolCalls"] = [
            {"toolCallId": call.tool_call_id, "correlationId": call.correlation_id, "toolName": call.tool_name}
            for call in event.message.tool_calls
        ]
    return data


_CURSOR = re.compile(r"(\d{1,15})-(\d{1,15})", re.ASCII)

IDLE_SECONDS = 15.0
"""How long a reader waits for an event before it gets an empty batch."""


class Cursor(msgspec.Struct, frozen=True, order=True, gc=False):
    """A place in a log: every event up to and including the id `<epoch>-<seq>` was read."""

    epoch: int
    seq: int

    def __str__(self) -> str:
        return f"{self.epoch}-{self.seq}"

    @classmethod
    def parse(cls, text: str) -> "Cursor":
        """Parse an event id. Raises ValueError when it is none."""
        match = _CURSOR.fullmatch(text)
        if match is None:
            raise ValueError(f"{text!r} is not an event id: expected <epoch>-<seq>, as in the id of an event")
        return cls(int(match[1]), int(match[2]))


START = Cursor(0, 0)
REBUILT_EPOCH = 1_000_000_000
"""The epoch of events rebuilt from the database, for a new reader; for other readers it is the next one.

Both come after every epoch of a running turn.
"""
REBUILT_SEQ = 1_000_000_000
"""The place in its epoch of the first event of a parked turn that is rebuilt from the database."""


class Frame(msgspec.Struct, frozen=True, gc=False):
    """One event as a client gets it: its id, its name, its JSON."""

    id: str
    name: str
    data: str

    @property
    def says_waiting(self) -> bool:
        """Whether it says that the turn waits for its user."""
        return self.name == "control" and self.data.startswith('{"type":"waiting"')

    @property
    def says_lost(self) -> bool:
        """Whether it stands for what a reader cannot get any more of the log."""
        return self.name == RESET and self.data.startswith('{"reason":"log_lost"')


Batch = Sequence[Frame]
"""Frames that were available at the same time, oldest first."""


class LogGoneError(Exception):
    """The next event in the log of a turn is missing, or cannot be read now."""


class TurnFrames(Protocol):
    """Reads the logs of turns, whichever engine runs them."""

    def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        """The events after `after` as they are added; an empty batch after each IDLE_SECONDS without one.

        It ends after the turn's last event. It ends earlier when the reader must ask again, here or at another engine:
        this engine shuts down, or another one has taken the turn over.

        Raises:
            LogGoneError: an event between `after`, or the last one that was read, and the next one is missing.
        """
        ...

    def kept(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Batch]:
        """The events after `after` that are there now, without waiting.

        Raises:
            LogGoneError: as for `follow`, or there is no such log, or it cannot be read now.
        """
        ...

    async def newest(self, turn_id: str) -> Frame | None:
        """The last event; None when there is none, or it cannot be read now."""
        ...

    def running(self, turn_id: str) -> Turn | None:
        """The turn, while this engine writes its log; None after its last event."""
        ...


GOES_ON_SECONDS = 2.0
"""How long it takes at most, as a rule, until some engine goes on with a turn whose calls were answered."""


class Readers:
    """Who reads which turns at this engine, and which messages that wait to become one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._of: Counter[str] = Counter()
        self._left: dict[str, float] = {}
        """When the last reader of a turn has left, in seconds of the clock."""
        self.messages: dict[str, Turn] = {}
        """Messages that were sent or read here, and may be left while they wait."""

    def read_since(self, turn_id: str, when: float) -> bool:
        """Whether a client reads the turn, or has read it since then."""
        return turn_id in self._of or self._left.get(turn_id, when) > when

    def answers(self, turn_id: str) -> None:
        """A client answers what the turn waits for, and reads on: it counts as a reader until the turn goes on."""
        self._left[turn_id] = self._clock() + GOES_ON_SECONDS

    def forget(self, before: float) -> None:
        """Forget the readers that have left before that."""
        self._left = {turn_id: when for turn_id, when in self._left.items() if when >= before}

    def expect(self, message: Turn) -> None:
        """This engine withdraws the message when it is left, where its request asks for that."""
        if message.leaving:
            self.messages[message.turn_id] = message

    @contextmanager
    def reading_message(self, message: Turn) -> Generator[None]:
        """A client waits for the beginning of the turn for as long as the block; it has left when the block fails."""
        self.expect(message)
        with self.reading(message.turn_id):
            yield
        self.messages.pop(message.turn_id, None)

    @contextmanager
    def reading(self, turn_id: str) -> Generator[None]:
        """A client reads the events of the turn for as long as the block."""
        self._of[turn_id] += 1
        try:
            yield
        finally:
            self._of[turn_id] -= 1
            if not self._of[turn_id]:
                del self._of[turn_id]
                self._left[turn_id] = max(self._clock(), self._left.get(turn_id, 0))
