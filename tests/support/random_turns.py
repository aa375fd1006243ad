"""Random logs of turns: parallel calls, approvals, questions, tools of clients, adoptions anywhere, stops, failures,
and what is read of them when the log is gone."""

from dataclasses import dataclass, field
from typing import Any

import msgspec
from hypothesis import strategies as st

from dialog_engine.chat.events import REBUILT_EPOCH, Cursor, Frame, encode
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    AssistantMessage,
    Done,
    DoneReason,
    MessageFinished,
    QuestionStatus,
    QuestionStep,
    ReasoningDelta,
    Reset,
    ResetReason,
    RoundComplete,
    TextDelta,
    ToolCall,
    ToolStatus,
    ToolStep,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    Usage,
    WaitingForUser,
    WaitsFor,
)

RESULT: dict[str, Any] = {
    "text": "12°",
    "truncated": False,
    "media": [{"mimeType": "image/png", "url": "/x"}],
    "links": [],
}
ENDS = {
    ToolStatus.SUCCEEDED: {"durationMs": 1, "result": RESULT},
    ToolStatus.FAILED: {"durationMs": 1, "error": {"code": "TIMEOUT", "message": "too late"}},
    ToolStatus.UNKNOWN: {"durationMs": 1, "error": {"code": "LOST", "message": "unknown"}},
}
TURN = "01a21b7e-e007-7b61-a38a-6a55b13ae2c0"
SPENT = Usage(10, 5, cached_tokens=4, cache_write_tokens=3, reasoning_tokens=2)
EDITED = {"a": 2}
DECISIONS = (ApprovalStatus.APPROVED, ApprovalStatus.EDITED, ApprovalStatus.REFUSED, ApprovalStatus.EXPIRED)
REASONS = (DoneReason.STOP, DoneReason.LENGTH, DoneReason.CANCELLED, DoneReason.ERROR)
RUNS = st.sampled_from([ToolStatus.QUEUED, ToolStatus.RUNNING])
PIECES = st.sampled_from(["a", " b", '"', "\\", "ü😀", "\n", "{}"])


@dataclass
class RandomTurn:
    """A turn that has ended: its log, what is read when that is gone, and the texts of its messages."""

    frames: list[Frame] = field(default_factory=list[Frame])
    rebuilt: list[Frame] = field(default_factory=list[Frame])
    texts: list[str] = field(default_factory=list[str])
    resets: int = 0
    asked: list[str] = field(default_factory=list[str])
    """The calls that wait for approval, by correlation id."""
    of_client: list[str] = field(default_factory=list[str])
    """The calls that the client runs, by correlation id."""
    committed: list[list[TurnEvent]] = field(default_factory=list[list[TurnEvent]])
    """What the store has when each of the frames is logged."""

    def lost(self, place: int, *, is_new: bool) -> Frame:
        """What a reader gets in the place of the frames up to this one, whose log is lost."""
        started = [TurnStarted(TURN, "session")] if is_new else []
        cursor = Cursor.parse(self.frames[place].id)
        return _frame(cursor.epoch, cursor.seq, Reset(ResetReason.LOG_LOST, (*started, *self.committed[place])))


@st.composite
def random_turns(draw: st.DrawFn) -> RandomTurn:
    """A turn of up to three rounds."""
    made = _Making(draw)
    for number in range(1, draw(st.integers(0, 2)) + 1):
        made.message(draw(st.integers(1, 3)), number)
        if not made.round(number):
            made.end(DoneReason.CANCELLED)
            return made.turn
    made.message(0, 9)
    made.end(draw(st.sampled_from([*REASONS])))
    return made.turn


class _Making:
    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw
        self.turn = RandomTurn()
        self._epoch, self._seq = 1, 0
        self._messages: list[list[TurnEvent]] = []
        """What a reset says of each message that is committed."""
        self._steps: dict[str, list[TurnEvent]] = {}
        """What it says of the calls of the last one."""
        self._calls: list[ToolCall] = []
        self._add(TurnStarted(TURN, "session"))

    def message(self, calls: int, number: int) -> None:
        """A message, which is written again after each adoption."""
        while not self._written(calls, number):
            self._adopt()

    def _written(self, calls: int, number: int) -> bool:
        reasoning = self._draw(st.lists(PIECES, max_size=2))
        text = self._draw(st.lists(PIECES, max_size=3, min_size=0 if calls else 1))
        for piece in reasoning:
            self._add(ReasoningDelta(piece))
        for piece in text:
            self._add(TextDelta(piece))
        if self._chance():
            return False
        self._calls = [ToolCall(f"call_{each}", f"id-{number}-{each}", "demo__add", "{}") for each in range(calls)]
        finished = MessageFinished(number, AssistantMessage("".join(text), tuple(self._calls)))
        self._messages.append([ReasoningDelta("".join(reasoning)), finished] if reasoning else [finished])
        self._steps = {each.correlation_id: [_step(each, ToolStatus.PENDING, number)] for each in self._calls}
        self._add(finished)
        self.turn.texts.append("".join(text))
        return True

    def round(self, number: int) -> bool:
        """The calls of the last message, of which some wait for people, and some for the client. Whether the turn goes
        on: it may be stopped meanwhile."""
        waits = [call for call in self._calls if self._draw(st.booleans())]
        of_client = [call for call in waits if self._draw(st.booleans())]
        for call in of_client:
            self.turn.of_client.append(call.correlation_id)
            details = {"arguments": {"a": 1}, "waitsFor": WaitsFor.CLIENT, "expiresAt": "2027"}
            self._steps[call.correlation_id] = [_step(call, ToolStatus.PENDING, number, details)]
        for call in self._calls:
            self._add(*self._steps[call.correlation_id])
        for call in waits:
            if call not in of_client:
                self._ask(call, number)
        for call in self._calls:
            if call not in waits:
                self._add(*(_step(call, each, number, {}) for each in self._draw(st.lists(RUNS, max_size=2))))
                self._end_call(call, self._draw(st.sampled_from([*ENDS])), number)
        while waits:
            client_calls = len([each for each in waits if each in of_client])
            ids = tuple(each.correlation_id for each in waits)
            self._add(WaitingForUser(len(waits) - client_calls, (), ids, client_calls, SPENT))
            if self._draw(st.booleans()):  # parked: the log goes on in the next epoch
                self._epoch, self._seq = self._epoch + 1, 0
            self._maybe_adopted()
            if self._chance():
                for call in waits:
                    self._end_call(call, ToolStatus.CANCELLED, number)
                return False
            call = waits.pop(0)
            if call in of_client:
                self._end_call(call, self._draw(st.sampled_from([*ENDS])), number)
            else:
                self._decide(call, number)
        self._add(RoundComplete(number))
        self._messages[-1] += [*self._replayed(), RoundComplete(number)]
        self._steps = {}
        return True

    def end(self, reason: DoneReason) -> None:
        """How the turn ends."""
        said = self._said()
        failed = [TurnFailed("LLM_ERROR", "it broke")] if reason is DoneReason.ERROR else []
        models = {"openai:gpt": SPENT}
        last = [*failed, Done(TURN, reason, SPENT, 3, "openai:gpt", 1, by_model=models)]
        self._add(*last)
        everything = enumerate([TurnStarted(TURN, "session"), *said, *last], 1)
        self.turn.rebuilt = [_frame(REBUILT_EPOCH, number, event) for number, event in everything]

    def _ask(self, call: ToolCall, number: int) -> None:
        self.turn.asked.append(call.correlation_id)
        details: dict[str, Any] = {"arguments": {"a": 1}, "policy": "always", "hash": "h1", "expiresAt": "2027"}
        self._steps[call.correlation_id].append(_approval(call, ApprovalStatus.ASKED, number, details))
        self._add(self._steps[call.correlation_id][-1])
        if self._chance():
            asked = {"questionId": f"{call.correlation_id}:1:1", "kind": "form", "message": "?"}
            self._add(QuestionStep(QuestionStatus.ASKED, call, "demo", number, asked))

    def _decide(self, call: ToolCall, number: int) -> None:
        status = self._draw(st.sampled_from(DECISIONS))
        is_edited = status is ApprovalStatus.EDITED
        details = {"decidedAt": "2026", "reason": "because"} | ({"arguments": EDITED} if is_edited else {})
        self._steps[call.correlation_id][1:] = [_approval(call, status, number, details | {"hash": "h1"})]
        self._add(_approval(call, status, number, details))
        self._maybe_adopted()
        if is_edited or status is ApprovalStatus.APPROVED:
            self._add(_step(call, ToolStatus.RUNNING, number, {"attempt": 1}))
            self._add(_step(call, ToolStatus.PROGRESS, number, {"progress": 1.0}))
            self._end_call(call, self._draw(st.sampled_from([*ENDS])), number)
        else:
            self._end_call(call, ToolStatus.REFUSED, number)

    def _end_call(self, call: ToolCall, status: ToolStatus, number: int) -> None:
        details = ENDS.get(status, {"durationMs": 0, "error": {"code": "NOT_APPROVED", "message": "refused"}})
        self._add(_step(call, status, number, details))
        shown = {"arguments": {"a": 1}, **details}
        kept = [each for each in self._steps[call.correlation_id] if isinstance(each, ApprovalStep) or _of_client(each)]
        self._steps[call.correlation_id] = [*kept, _step(call, status, number, shown)]
        self._maybe_adopted()

    def _replayed(self) -> list[TurnEvent]:
        """The steps of the round as a reset says them: those that name calls of the client come first."""
        steps = [event for each in self._steps.values() for event in each]
        return sorted(steps, key=lambda each: not _of_client(each))

    def _chance(self) -> bool:
        return self._draw(st.integers(0, 5)) == 5

    def _maybe_adopted(self) -> None:
        if self._chance():
            self._adopt()

    def _adopt(self) -> None:
        self._epoch, self._seq = self._epoch + 1, 0
        self.turn.resets += 1
        self._add(TurnStarted(TURN, "session"), Reset(ResetReason.ADOPTION, tuple(self._said())))

    def _said(self) -> list[TurnEvent]:
        """What is committed."""
        said = [event for each in self._messages for event in each]
        return said + self._replayed()

    def _add(self, *events: TurnEvent) -> None:
        for event in events:
            self._seq += 1
            self.turn.frames.append(_frame(self._epoch, self._seq, event))
            self.turn.committed.append(self._said())


def _frame(epoch: int, number: int, event: TurnEvent) -> Frame:
    name, data = encode(event)
    return Frame(f"{epoch}-{number}", name, msgspec.json.encode(data).decode())


def _step(call: ToolCall, status: ToolStatus, number: int, details: dict[str, Any] | None = None) -> ToolStep:
    return ToolStep(status, call, "demo", number, details or {"arguments": {"a": 1}, "title": "Add"})


def _of_client(step: TurnEvent) -> bool:
    return isinstance(step, ToolStep) and "waitsFor" in step.details


def _approval(call: ToolCall, status: ApprovalStatus, number: int, details: dict[str, Any]) -> ApprovalStep:
    return ApprovalStep(status, call, "demo", number, details)
