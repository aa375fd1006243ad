"""What is committed, in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from dialog_engine.chat.archive import CallRecord, MessageRecord, Page
from dialog_engine.chat.conversation import messages_of
from dialog_engine.chat.outbox import (
    TOOL_CALL_FINISHED,
    TURN_FINISHED,
    OutboxRow,
)
from dialog_engine.chat.ports import Adopted, Control, History, TurnStore
from dialog_engine.errors import SessionNotFoundError, TurnFencedError, TurnRunningError
from dialog_engine.model import (
    AssistantMessage,
    Done,
    MediaInStore,
    Message,
    ToolCall,
    Turn,
    TurnFailed,
    Usage,
    UserMessage,
)
from dialog_engine.tool_calls.execution import OpenCall
from dialog_engine.tool_calls.ports import (
    NO_COST,
    NO_QUESTIONS,
    NO_SERVERS,
    ApprovalStore,
    CallStore,
    KeptResult,
    MakeRequest,
    ResultStore,
)
from dialog_engine.tool_calls.results.shortening import whole_of
from dialog_engine.tool_calls.values import Approval, ApprovalState, Asked, Decision, Question, WholeResult
from plugins_contract.ledger import NEVER_OFFERED
from plugins_contract.messages import EVENT_TYPE, ToolCallRequested, encode_request
from plugins_contract.outcomes import MediaBlock, ToolOutcome

T = TypeVar("T")


@dataclass(slots=True)
class StoredTurn:
    """A turn as it is in storage."""

    turn: Turn
    status: str = "running"
    done: Done | None = None
    failure: TurnFailed | None = None


@dataclass(slots=True)
class _StoredMessage:
    number: int
    turn_id: str
    message: UserMessage | AssistantMessage


@dataclass(slots=True)
class _StoredCall:
    call: ToolCall
    turn_id: str
    request: ToolCallRequested | None
    outcome: ToolOutcome | None = None
    approval: Approval | None = None
    whole: WholeResult | None = None
    ran_on: str = ""

    @property
    def server(self) -> str:
        """The server that ran it, runs it, or is to run it."""
        asked = self.request.server if self.request else self.approval.question.server if self.approval else ""
        return asked or self.ran_on


@dataclass(slots=True)
class _Session:
    subject: str
    messages: list[_StoredMessage] = field(default_factory=list[_StoredMessage])


class NoOthers(Control):
    """For the one engine of a test: there is no other to wake."""

    def stop(self, turn_id: str) -> None:
        pass

    def decision(self) -> None:
        pass

    def free(self, session_id: str) -> None:
        pass


class MemoryStore(CallStore, ResultStore, ApprovalStore, TurnStore, History):
    """Storage in memory, with one writer: a commit that is on its way happens, whoever waits for it.

    `hold["add_round"] = asyncio.Event()` keeps those commits waiting, `refuse["finish"] = error` makes them fail;
    `begun` lists the commits that were asked for.
    """

    def __init__(self) -> None:
        self.turns: dict[str, StoredTurn] = {}
        self.outbox: dict[int, OutboxRow] = {}
        self.hold: dict[str, asyncio.Event] = {}
        self.refuse: dict[str, Exception] = {}
        self.begun: list[str] = []
        self._sessions: dict[str, _Session] = {}
        self._calls: dict[str, _StoredCall] = {}
        self._waiting_turns: list[Turn] = []
        self._stops: set[str] = set()
        self._writer = asyncio.Lock()
        self._rows = 0

    async def begin(self, turn: Turn, text: str, *, new_session: bool = False, queue: bool = False) -> None:
        def unit() -> str | None:
            session = self._sessions.get(turn.session_id)
            if new_session:
                session = self._sessions[turn.session_id] = _Session(turn.subject)
            if session is None or session.subject != turn.subject:
                raise SessionNotFoundError(f"there is no session {turn.session_id}")
            ahead = [stored.turn for stored in self._running()] + self._waiting_turns
            ids = [each.turn_id for each in ahead if each.session_id == turn.session_id]
            if ids and ids[0] != turn.turn_id:
                if queue and turn.turn_id not in ids:
                    self._waiting_turns.append(turn)
                return ids[0]
            self._waiting_turns = [each for each in self._waiting_turns if each.turn_id != turn.turn_id]
            self.turns[turn.turn_id] = StoredTurn(turn)
            self._add(turn, UserMessage(text))
            return None

        if running := await self._commit("begin", unit):
            raise TurnRunningError(running)

    async def leave(self, turn: Turn) -> None:
        def unit() -> None:
            self._waiting_turns = [each for each in self._waiting_turns if each.turn_id != turn.turn_id]

        await self._commit("leave", unit)

    async def request_stop(self, turn_id: str) -> str | None:
        self._stops.add(turn_id)
        return "this engine" if await self.is_running(turn_id) else None

    async def is_running(self, turn_id: str) -> bool:
        return any(stored.turn.turn_id == turn_id for stored in self._running())

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        def unit() -> int | None:
            stored = self.turns[turn.turn_id]
            if stored.turn.epoch != turn.epoch:
                raise TurnFencedError(turn.turn_id)
            if stored.status != "running":
                return None
            stored.status = {"cancelled": "cancelled", "error": "failed"}.get(done.reason, "done")
            stored.done, stored.failure = done, failure
            self._event(TURN_FINISHED, turn.turn_id, b"{}")
            return None if message is None else self._add(turn, message)

        return await self._commit("finish", unit)

    async def adopt_own(self) -> Sequence[Adopted]:
        """Take up what an earlier life of the engine left, as `Engines` does."""

        def unit() -> list[Adopted]:
            for stored in self._running():
                calls = sum(call.turn_id == stored.turn.turn_id for call in self._calls.values())
                stored.turn = replace(stored.turn, epoch=stored.turn.epoch + 1, calls=calls)
            turns = [stored.turn for stored in self._running()]
            return [Adopted(turn, turn.turn_id in self._stops, crashes=1, rows=()) for turn in turns]

        return await self._commit("adopt_own", unit)

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
        questions: Mapping[str, Question] = NO_QUESTIONS,
        servers: Mapping[str, str] = NO_SERVERS,
        *,
        cost: Usage = NO_COST,
        model: str = "",
    ) -> int:
        def unit() -> int:
            asked = {request.correlation_id: request for request in requests}
            stored = self._fenced(turn)
            stored.turn = replace(stored.turn, rounds=stored.turn.rounds + 1, usage=stored.turn.usage + cost)
            for call in message.tool_calls:
                self._calls[call.correlation_id] = _StoredCall(call, turn.turn_id, asked.get(call.correlation_id))
            for call_id, server in servers.items():
                self._calls[call_id].ran_on = server
            for call_id, question in questions.items():
                self._calls[call_id].approval = Approval(question)
            for request in requests:
                self._event(EVENT_TYPE, request.correlation_id, encode_request(request))
            for call_id, outcome in answered.items():
                self._answer(call_id, outcome)
            return self._add(turn, message)

        return await self._commit("add_round", unit)

    async def add_result(
        self, turn: Turn, call: ToolCall, outcome: ToolOutcome, whole: WholeResult | None = None
    ) -> bool:
        def unit() -> bool:
            self._fenced(turn)
            first = self._answer(call.correlation_id, outcome)
            if first:
                self._calls[call.correlation_id].whole = whole
            return first

        return await self._commit("add_result", unit)

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        for stored in self._calls.values() if len(name) >= 8 else ():
            if stored.call.correlation_id.endswith(name) and self._is_of(turn, stored) and stored.outcome:
                whole = stored.whole or whole_of(stored.outcome)
                return KeptResult(stored.call.correlation_id, stored.call.name, whole)
        return None

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        cut = [each.call for each in self._calls.values() if each.whole and self._is_of(turn, each)]
        return [(call.correlation_id, call.name) for call in reversed(cut)][:10]

    def _is_of(self, turn: Turn, stored: _StoredCall) -> bool:
        here = self.turns[stored.turn_id].turn
        return (here.session_id, here.subject) == (turn.session_id, turn.subject)

    async def waiting(self, turn: Turn) -> Sequence[Asked]:
        def unit() -> list[Asked]:
            self._fenced(turn)
            return self._waiting(turn.turn_id)

        return await self._commit("waiting", unit)

    async def states(self, correlation_ids: Sequence[str]) -> Sequence[ApprovalState]:
        found = [self._calls[each] for each in correlation_ids if each in self._calls]
        return [
            ApprovalState(
                each.call.correlation_id, each.approval.question, each.approval.decision, each.outcome, each.request
            )
            for each in found
            if each.approval
        ]

    async def decide(
        self,
        turn_id: str,
        asked: Asked,
        decision: Decision,
        request: MakeRequest | None,
        outcome: ToolOutcome | None,
    ) -> bool:
        def unit() -> bool:
            if not self._stands(turn_id, asked):
                return False
            stored = self._calls[asked.call.correlation_id]
            wanted = request(self.turns[turn_id].turn) if request else None
            stored.approval, stored.request = Approval(asked.question, decision), wanted
            if wanted is not None:
                self._event(EVENT_TYPE, wanted.correlation_id, encode_request(wanted))
            if outcome is not None:
                self._answer(asked.call.correlation_id, outcome)
            return True

        return await self._commit("decide", unit)

    async def ask_again(self, turn_id: str, asked: Asked, question: Question) -> bool:
        def unit() -> bool:
            if not self._stands(turn_id, asked):
                return False
            self._calls[asked.call.correlation_id].approval = Approval(question)
            return True

        return await self._commit("ask_again", unit)

    async def close(
        self, turn: Turn, outcome_of: Callable[[ToolCall], ToolOutcome]
    ) -> Sequence[tuple[Asked, ToolOutcome]]:
        def unit() -> list[tuple[Asked, ToolOutcome]]:
            self._fenced(turn)
            closed = [(each, outcome_of(each.call)) for each in self._waiting(turn.turn_id)]
            for each, outcome in closed:
                self._answer(each.call.correlation_id, outcome)
            return closed

        return await self._commit("close", unit)

    async def messages(self, session_id: str) -> Sequence[Message]:
        """All that was said in a session."""
        return messages_of([self._record(each) for each in self._sessions[session_id].messages])

    async def page(self, session_id: str, *, before: int | None, limit: int, size: int) -> Page:
        older = [each for each in self._sessions[session_id].messages if before is None or each.number < before]
        page = [self._record(each) for each in older[-limit:]]
        while len(page) > 1 and sum(len(each.content) for each in page[1:]) >= size:
            page = page[1:]
        return Page(page, more=len(page) < len(older))

    async def fetched(self, media: MediaInStore) -> MediaBlock:
        raise AssertionError("outcomes in memory have their media")

    async def turn_messages(self, turn_id: str) -> Sequence[MessageRecord]:
        said = self._sessions[self.turns[turn_id].turn.session_id].messages
        return [self._record(each) for each in said if each.turn_id == turn_id]

    def _record(self, stored: _StoredMessage) -> MessageRecord:
        match stored.message:
            case UserMessage(content):
                return MessageRecord(stored.number, stored.turn_id, "user", content, False, 0, ())
            case AssistantMessage(content, calls, reasoning, interrupted):
                known = [self._calls[call.correlation_id] for call in calls]
                records = tuple(CallRecord(each.call, each.server, each.outcome, each.approval) for each in known)
                return MessageRecord(
                    stored.number, stored.turn_id, "assistant", content, interrupted, 0, records, reasoning
                )

    async def open_calls(self, turn: Turn) -> Sequence[OpenCall]:
        def unit() -> list[OpenCall]:
            self._fenced(turn)
            return self.left_open(turn)

        return await self._commit("open_calls", unit)

    def left_open(self, turn: Turn) -> list[OpenCall]:
        """The open calls of a turn, whether or not it runs."""
        return [
            OpenCall(stored.call, stored.request)
            for stored in self._calls.values()
            if stored.turn_id == turn.turn_id and stored.outcome is None and stored.request is not None
        ]

    def asked(self, correlation_id: str) -> tuple[str, Asked] | None:
        """The turn and the question of a call that waits for approval."""
        turn_id = self._calls[correlation_id].turn_id
        if self.turns[turn_id].status != "running":
            return None
        found = [each for each in self._waiting(turn_id) if each.call.correlation_id == correlation_id]
        return (turn_id, found[0]) if found else None

    def _waiting(self, turn_id: str) -> list[Asked]:
        return [
            Asked(stored.call, stored.approval.question)
            for stored in self._calls.values()
            if stored.turn_id == turn_id and stored.outcome is None
            if stored.approval is not None and stored.approval.decision is None
        ]

    def _stands(self, turn_id: str, asked: Asked) -> bool:
        return self.turns[turn_id].status == "running" and asked in self._waiting(turn_id)

    def _fenced(self, turn: Turn) -> StoredTurn:
        stored = self.turns.get(turn.turn_id)
        if stored is None or stored.status != "running" or stored.turn.epoch != turn.epoch:
            raise TurnFencedError(turn.turn_id)
        return stored

    def _running(self) -> list[StoredTurn]:
        return [stored for stored in self.turns.values() if stored.status == "running"]

    def _add(self, turn: Turn, message: UserMessage | AssistantMessage) -> int:
        messages = self._sessions[turn.session_id].messages
        messages.append(_StoredMessage(len(messages) + 1, turn.turn_id, message))
        return len(messages)

    def _answer(self, correlation_id: str, outcome: ToolOutcome) -> bool:
        stored = self._calls[correlation_id]
        if stored.outcome is not None:
            return False
        stored.outcome = outcome
        self.outbox = {
            n: row for n, row in self.outbox.items() if (row.event_type, row.event_id) != (EVENT_TYPE, correlation_id)
        }
        self._event(TOOL_CALL_FINISHED, correlation_id, b"{}")
        return True

    def _event(self, event_type: str, event_id: str, payload: bytes) -> None:
        self._rows += 1
        offered_to = NEVER_OFFERED if event_type == EVENT_TYPE else None
        self.outbox[self._rows] = OutboxRow(
            self._rows, event_type, event_id, payload, offered_to=offered_to, sent=False
        )

    async def _commit(self, what: str, unit: Callable[[], T]) -> T:
        self.begun.append(what)
        return await asyncio.shield(asyncio.create_task(self._write(what, unit), name=f"commit of {what}"))

    async def _write(self, what: str, unit: Callable[[], T]) -> T:
        async with self._writer:
            if what in self.hold:
                await self.hold[what].wait()
            if what in self.refuse:
                raise self.refuse[what]
            return unit()
