"""In-process twins of the ports: what the core needs from the world, without Redis, SQLite or a provider.

They keep the promises of the ports, which `tests/contract/ports` holds them to, and can be told to be slow or to fail.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import msgspec

from dialog_engine.chat import events, facts
from dialog_engine.chat.frames import START, Cursor, Frame, LogGoneError, TurnFrames
from dialog_engine.chat.outbox import Outbox, OutboxRow
from dialog_engine.chat.ports import History, TurnLog, TurnLogs, TurnStore
from dialog_engine.chat.service import ChatService, Memory
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import SessionNotFoundError, TurnRunningError
from dialog_engine.model import (
    AssistantMessage,
    CallAnswered,
    CallProgressed,
    CallQueued,
    CallRunning,
    CallUpdate,
    ChatEvent,
    ChatRequest,
    Done,
    FinishReason,
    Message,
    StreamEnd,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolMessage,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
    TurnFailed,
    Usage,
    UserMessage,
)
from dialog_engine.tool_calls.enhance import enhance
from dialog_engine.tool_calls.pipeline import standard_pipeline
from dialog_engine.tool_calls.ports import CallStore, StreamChat, ToolCalls, ToolSource
from dialog_engine.tool_calls.rounds import OpenCall
from dialog_engine.tool_calls.views import for_model
from plugins_contract.catalogue import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.ids import new_id
from plugins_contract.messages import EVENT_TYPE, ToolCallRequested, encode_request
from plugins_contract.outcomes import CallState, TextBlock, ToolError, ToolOutcome
from tests.support.waiting import wait_until

T = TypeVar("T")

SPENT = Usage(10, 5)
"""What every reply of the scripted model costs."""


# --- The model ------------------------------------------------------------------------------------------------------

Line = ChatEvent | Exception | asyncio.Event
"""What a reply is made of: an event is streamed, an exception raised, an asyncio.Event waited for."""


def says(text: str, finish: FinishReason = FinishReason.STOP) -> list[Line]:
    """A reply of text, word by word."""
    words = text.split(" ")
    pieces = [word + " " for word in words[:-1]] + words[-1:]
    return [*(TextDelta(piece) for piece in pieces), StreamEnd(finish, SPENT)]


def asks(*calls: tuple[str, str], text: str = "") -> list[Line]:
    """A reply with tool calls, each a tool's name and its arguments as JSON text."""
    said: list[Line] = [TextDelta(text)] if text else []
    said += [ToolCallEvent(f"call_{n}", name, arguments) for n, (name, arguments) in enumerate(calls, 1)]
    return [*said, StreamEnd(FinishReason.TOOL_CALLS, SPENT)]


class ScriptedModel:
    """A StreamChat that gives one reply after the other, and remembers what it was asked."""

    def __init__(self, *replies: Sequence[Line]) -> None:
        self._replies = list(replies)
        self.requests: list[ChatRequest] = []
        self.open = 0

    async def __call__(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        self.requests.append(request)
        self.open += 1
        try:
            for line in self._replies.pop(0):
                match line:
                    case Exception():
                        raise line
                    case asyncio.Event():
                        await line.wait()
                    case _:
                        yield line
        finally:
            self.open -= 1


# --- Tools ----------------------------------------------------------------------------------------------------------


def tool(name: str, schema: dict[str, Any] | None = None, **fields: Any) -> ToolEntry:
    """A tool of the server that its name begins with."""
    server, _, own = name.partition("__")
    return ToolEntry(name=name, server=server, tool=own, input_schema=schema or {"type": "object"}, **fields)


class Shelf(ToolSource):
    """A ToolSource with these tools."""

    def __init__(self, *tools: ToolEntry) -> None:
        self._tools = {entry.name: entry for entry in tools}

    def tools(self) -> tuple[ToolEntry, ...]:
        return tuple(self._tools.values())

    def find(self, name: str) -> ToolEntry | ToolError:
        return self._tools.get(name) or ToolError(ErrorCode.TOOL_NOT_FOUND, f"there is no tool {name!r}")


@dataclass(frozen=True, slots=True)
class Execution:
    """One execution of a tool."""

    arguments: dict[str, Any]
    progress: Callable[[float, float | None, str | None], None]


Behaviour = Callable[[Execution], Awaitable[ToolOutcome]]


def succeeded(text: str) -> ToolOutcome:
    """The outcome of a call that went well."""
    return ToolOutcome(CallState.SUCCEEDED, (TextBlock(text),), duration_ms=1, attempts=1)


def failed(message: str) -> ToolOutcome:
    """The outcome of a tool that says it failed."""
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.TOOL_EXECUTION_FAILED, message, attempts=1)


def gives(outcome: ToolOutcome, when: asyncio.Event | None = None) -> Behaviour:
    """A tool with this outcome, at once or when the event is set."""

    async def behave(_: Execution) -> ToolOutcome:
        if when is not None:
            await when.wait()
        return outcome

    return behave


@dataclass(slots=True)
class _Job:
    request: ToolCallRequested
    task: asyncio.Task[None] | None = None
    outcome: ToolOutcome | None = None
    tell: Callable[[CallUpdate], None] | None = None


class Workshop(ToolCalls):
    """ToolCalls whose worker is here: it outlives the engines of a test, as Redis and the workers do.

    `executed` lists the correlation ids of all executions. Until it is `staffed` nothing begins; `deaf` workers, and
    tools of that name, do not answer a cancellation.
    """

    def __init__(self, behaviours: Mapping[str, Behaviour] | None = None) -> None:
        self._behaviours = behaviours or {}
        self._jobs: dict[str, _Job] = {}
        self.executed: list[str] = []
        self.staffed = True
        self.deaf = False

    def request(self, turn: Turn, call: ToolCall, tool: ToolEntry, arguments: dict[str, Any]) -> ToolCallRequested:
        return ToolCallRequested(
            correlation_id=call.correlation_id,
            session_id=turn.session_id,
            turn_id=turn.turn_id,
            turn=turn.epoch,
            tool_call_id=call.tool_call_id,
            tool_name=call.name,
            server=tool.server,
            tool=tool.tool,
            arguments=arguments,
            response_channel=f"responses:{call.correlation_id}",
            mailbox="mailbox",
            deadline=_now_ms() + (tool.timeout_ms or 60_000),
            execution_class=tool.execution_class,
            subject=turn.subject,
            traceparent=turn.traceparent,
        )

    async def run(self, requests: Sequence[ToolCallRequested]) -> AsyncGenerator[CallUpdate]:
        inbox: asyncio.Queue[CallUpdate] = asyncio.Queue()
        waiting = {request.correlation_id: request for request in requests}
        try:
            for request in requests:
                self._take(request, inbox.put_nowait)
            while waiting:
                update = await self._next(inbox, waiting)
                if isinstance(update, CallAnswered):
                    del waiting[update.correlation_id]
                yield update
        finally:
            for request in requests:
                self._jobs[request.correlation_id].tell = None

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        return {request.correlation_id: await self._stop(request) for request in requests}

    async def staff(self, behaviours: Mapping[str, Behaviour]) -> None:
        """Now there is a worker, and this is what its tools do."""
        self._behaviours, self.staffed = behaviours, True
        for job in self._jobs.values():
            self._begin(job)

    @property
    def listened_to(self) -> list[str]:
        """The correlation ids of the calls that somebody waits for."""
        return [call_id for call_id, job in self._jobs.items() if job.tell is not None]

    async def close(self) -> None:
        """Let nothing go on behind the test's back."""
        for job in self._jobs.values():
            await self._halt(job)

    def _take(self, request: ToolCallRequested, tell: Callable[[CallUpdate], None]) -> None:
        job = self._jobs.setdefault(request.correlation_id, _Job(request))
        job.tell = tell
        if job.outcome is not None:
            tell(CallAnswered(request.correlation_id, job.outcome))
            return
        tell(CallQueued(request.correlation_id, 0))
        if self.staffed:
            self._begin(job)

    def _begin(self, job: _Job) -> None:
        if job.task is None and job.outcome is None:
            self.executed.append(job.request.correlation_id)
            job.task = asyncio.create_task(self._execute(job), name=f"tool {job.request.tool_name}")

    async def _next(self, inbox: "asyncio.Queue[CallUpdate]", waiting: Mapping[str, ToolCallRequested]) -> CallUpdate:
        first = min(waiting.values(), key=lambda request: request.deadline)
        try:
            async with asyncio.timeout(max(0.0, (first.deadline - _now_ms()) / 1000)):
                return await inbox.get()
        except TimeoutError:
            job = self._jobs[first.correlation_id]
            state = CallState.EXPIRED if job.task is None else CallState.UNKNOWN
            job.outcome = job.outcome or ToolOutcome.failure(state, ErrorCode.TIMEOUT, "its time is up")
            return CallAnswered(first.correlation_id, job.outcome)

    async def _execute(self, job: _Job) -> None:
        call_id = job.request.correlation_id

        def progress(done: float, total: float | None, message: str | None) -> None:
            _tell(job, CallProgressed(call_id, done, total, message))

        _tell(job, CallRunning(call_id, 1))
        behaviour = self._behaviours.get(job.request.tool_name, gives(succeeded("done")))
        outcome = await behaviour(Execution(job.request.arguments, progress))
        job.outcome = job.outcome or outcome
        _tell(job, CallAnswered(call_id, job.outcome))

    async def _stop(self, request: ToolCallRequested) -> ToolOutcome:
        job = self._jobs.setdefault(request.correlation_id, _Job(request))
        if job.outcome is None:
            if job.task is None:
                job.outcome = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "stopped before it began")
            elif self.deaf or request.tool == "deaf":
                job.outcome = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "no worker answers")
            else:
                await self._halt(job)
                job.outcome = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "stopped while it ran")
        return job.outcome

    async def _halt(self, job: _Job) -> None:
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait([job.task])


def _tell(job: _Job, update: CallUpdate) -> None:
    if job.tell is not None:
        job.tell(update)


# --- Storage --------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class StoredTurn:
    """A turn as it is in storage."""

    turn: Turn
    status: str = "running"
    done: Done | None = None
    failure: TurnFailed | None = None


@dataclass(slots=True)
class _StoredMessage:
    turn_id: str
    message: UserMessage | AssistantMessage


@dataclass(slots=True)
class _StoredCall:
    call: ToolCall
    turn_id: str
    request: ToolCallRequested | None
    outcome: ToolOutcome | None = None


@dataclass(slots=True)
class _Session:
    subject: str
    messages: list[int] = field(default_factory=list[int])


class MemoryStore(CallStore, TurnStore, History):
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
        self._messages: dict[int, _StoredMessage] = {}
        self._calls: dict[str, _StoredCall] = {}
        self._writer = asyncio.Lock()
        self._rows = 0

    async def begin(self, subject: str, session_id: str | None, text: str, traceparent: str | None) -> Turn:
        turn = Turn(new_id(), session_id or new_id(), subject, traceparent=traceparent)

        def unit() -> Turn:
            session = self._sessions.get(turn.session_id)
            if session_id is None:
                session = self._sessions[turn.session_id] = _Session(subject)
            if session is None or session.subject != subject:
                raise SessionNotFoundError(f"there is no session {session_id}")
            if running := [t for t in self._running() if t.turn.session_id == turn.session_id]:
                raise TurnRunningError(running[0].turn.turn_id)
            self.turns[turn.turn_id] = StoredTurn(turn)
            self._add(turn, UserMessage(text))
            return turn

        return await self._commit("begin", unit)

    async def finish(
        self, turn: Turn, message: AssistantMessage | None, done: Done, failure: TurnFailed | None
    ) -> int | None:
        def unit() -> int | None:
            stored = self.turns[turn.turn_id]
            if stored.status != "running" or stored.turn.epoch != turn.epoch:
                return None
            stored.status = {"cancelled": "cancelled", "error": "failed"}.get(done.reason, "done")
            stored.done, stored.failure = done, failure
            self._event(facts.TURN_FINISHED, turn.turn_id, b"{}")
            return None if message is None else self._add(turn, message)

        return await self._commit("finish", unit)

    async def adopt_unfinished(self) -> Sequence[Turn]:
        def unit() -> list[Turn]:
            for stored in self._running():
                stored.turn = replace(stored.turn, epoch=stored.turn.epoch + 1)
            return [stored.turn for stored in self._running()]

        return await self._commit("adopt_unfinished", unit)

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
    ) -> int:
        def unit() -> int:
            asked = {request.correlation_id: request for request in requests}
            stored = self.turns[turn.turn_id]
            stored.turn = replace(stored.turn, rounds=stored.turn.rounds + 1)
            for call in message.tool_calls:
                self._calls[call.correlation_id] = _StoredCall(call, turn.turn_id, asked.get(call.correlation_id))
            for request in requests:
                self._event(EVENT_TYPE, request.correlation_id, encode_request(request))
            for call_id, outcome in answered.items():
                self._answer(call_id, outcome)
            return self._add(turn, message)

        return await self._commit("add_round", unit)

    async def add_result(self, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> bool:
        return await self._commit("add_result", lambda: self._answer(call.correlation_id, outcome))

    async def messages(self, session_id: str) -> Sequence[Message]:
        said: list[Message] = []
        for number in self._sessions[session_id].messages:
            message = self._messages[number].message
            said.append(message)
            if isinstance(message, AssistantMessage):
                for call in message.tool_calls:
                    outcome = self._calls[call.correlation_id].outcome
                    if outcome is not None:
                        said.append(ToolMessage(call.tool_call_id, call.name, for_model(outcome)))
        return said

    async def open_calls(self, turn: Turn) -> Sequence[OpenCall]:
        def unit() -> list[OpenCall]:
            return [
                OpenCall(stored.call, stored.request)
                for stored in self._calls.values()
                if stored.turn_id == turn.turn_id and stored.outcome is None and stored.request is not None
            ]

        return await self._commit("open_calls", unit)

    def _running(self) -> list[StoredTurn]:
        return [stored for stored in self.turns.values() if stored.status == "running"]

    def _add(self, turn: Turn, message: UserMessage | AssistantMessage) -> int:
        number = len(self._messages) + 1
        self._messages[number] = _StoredMessage(turn.turn_id, message)
        self._sessions[turn.session_id].messages.append(number)
        return number

    def _answer(self, correlation_id: str, outcome: ToolOutcome) -> bool:
        stored = self._calls[correlation_id]
        if stored.outcome is not None:
            return False
        stored.outcome = outcome
        self.outbox = {
            n: row for n, row in self.outbox.items() if (row.event_type, row.event_id) != (EVENT_TYPE, correlation_id)
        }
        self._event(facts.TOOL_CALL_FINISHED, correlation_id, b"{}")
        return True

    def _event(self, event_type: str, event_id: str, payload: bytes) -> None:
        self._rows += 1
        self.outbox[self._rows] = OutboxRow(self._rows, event_type, event_id, payload)

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


class MemoryOutbox(Outbox):
    """The outbox of a MemoryStore."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._marked: set[int] = set()
        self._postponed: dict[int, float] = {}

    async def waiting(self, limit: int) -> Sequence[OutboxRow]:
        now = time.monotonic()
        rows = [row for n, row in self._store.outbox.items() if n not in self._marked]
        return [row for row in rows if self._postponed.get(row.seq, 0.0) <= now][:limit]

    async def published(self, rows: Sequence[OutboxRow]) -> None:
        for row in rows:
            if row.event_type == EVENT_TYPE:
                self._marked.add(row.seq)
            else:
                self._store.outbox.pop(row.seq, None)

    async def postpone(self, row: OutboxRow, error: str, retry_in_ms: int) -> None:
        self._store.outbox[row.seq] = replace(row, attempts=row.attempts + 1)
        self._postponed[row.seq] = time.monotonic() + retry_in_ms / 1000


# --- The turn's log -------------------------------------------------------------------------------------------------


class MemoryLog(TurnLog):
    """The log of one life of a turn."""

    def __init__(self, turn: Turn, on_growth: Callable[[], None]) -> None:
        self.turn = turn
        self.events: list[TurnEvent] = []
        self.closed = False
        self._on_growth = on_growth

    def append(self, event: TurnEvent) -> None:
        self.events.append(event)
        self._on_growth()

    async def close(self) -> None:
        self.closed = True
        self._on_growth()


class MemoryLogs(TurnLogs, TurnFrames):
    """The logs of all turns; they outlive the engines of a test."""

    def __init__(self) -> None:
        self.lives: dict[str, list[MemoryLog]] = defaultdict(list)
        self._grown = asyncio.Event()

    def open(self, turn: Turn) -> MemoryLog:
        log = MemoryLog(turn, self._grew)
        self.lives[turn.turn_id].append(log)
        return log

    async def follow(self, turn_id: str, after: Cursor = START) -> AsyncGenerator[Frame]:
        if turn_id not in self.lives:
            raise LogGoneError(turn_id)
        while True:
            grown = self._grown
            for cursor, event in self._after(turn_id, after):
                after = cursor
                name, data = events.encode(event)
                yield Frame(str(cursor), name, msgspec.json.encode(data).decode())
            if self.lives[turn_id][-1].closed and not self._after(turn_id, after):
                return
            if not self._after(turn_id, after):
                await grown.wait()

    def _after(self, turn_id: str, after: Cursor) -> list[tuple[Cursor, TurnEvent]]:
        story = [
            (Cursor(life.turn.epoch, number), event)
            for life in self.lives[turn_id]
            for number, event in enumerate(life.events, 1)
        ]
        return [(cursor, event) for cursor, event in story if cursor > after]

    def _grew(self) -> None:
        self._grown.set()
        self._grown = asyncio.Event()


# --- All together ---------------------------------------------------------------------------------------------------


class Stage:
    """The core of an engine among twins. `crash` and `restart` give it another life with the same world around it."""

    def __init__(
        self,
        model: StreamChat,
        *,
        tools: ToolSource | None = None,
        workshop: Workshop | None = None,
        store: MemoryStore | None = None,
        max_rounds: int = 5,
        system_prompt: str = "",
    ) -> None:
        self.model = model
        self.tools = tools or Shelf()
        self.workshop = workshop or Workshop()
        self.store = store or MemoryStore()
        self.logs = MemoryLogs()
        self._max_rounds = max_rounds
        self._system_prompt = system_prompt
        self.turns = self._engine()

    async def __aenter__(self) -> "Stage":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.turns.close(0)
        await self.workshop.close()

    async def turn(self, text: str, session_id: str | None = None, *, subject: str = "someone") -> list[TurnEvent]:
        """A whole turn: everything the user saw."""
        turn = await self.turns.start(subject, session_id, text)
        return await self.seen(turn)

    async def seen(self, turn: Turn) -> list[TurnEvent]:
        """What the user saw of the turn's present life, when it has ended."""
        await wait_until(lambda: self._life(turn).closed, what=f"the end of {self._life(turn).events}")
        return self._life(turn).events

    async def until(self, turn: Turn, condition: Callable[[TurnEvent], bool]) -> None:
        """Wait until the user has seen such an event in the turn's present life."""
        await wait_until(lambda: any(map(condition, self._life(turn).events)), what="the event")

    async def restart(self) -> int:
        """The engine dies where it stands, and another one takes over. How many turns it resumes."""
        await self.turns.close(0)
        self.turns = self._engine()
        return await self.turns.resume()

    def _life(self, turn: Turn) -> MemoryLog:
        return self.logs.lives[turn.turn_id][-1]

    def _engine(self) -> RunningTurns:
        pipeline = standard_pipeline(
            source=self.tools,
            store=self.store,
            calls=self.workshop,
            system_prompt=self._system_prompt,
            max_rounds=self._max_rounds,
        )
        service = ChatService(
            enhance(self.model, pipeline),
            turns=self.store,
            history=self.store,
            store=self.store,
            calls=self.workshop,
            memory=Memory(100, 10_000),
        )
        return RunningTurns(service, self.store, self.logs)


async def read_all(stream: AsyncGenerator[ChatEvent]) -> tuple[list[ChatEvent], Exception | None]:
    """All that a chat stream says, and the error it ends with, if any."""
    seen: list[ChatEvent] = []
    try:
        async with aclosing(stream) as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 -- what was said before an error counts
    except Exception as error:  # noqa: BLE001 -- it is what is asked for
        return seen, error
    return seen, None


async def breathe() -> None:
    """Let every task go on as far as it can without the outside world."""
    for _ in range(20):
        await asyncio.sleep(0)


def text_of(events: Sequence[TurnEvent]) -> str:
    """The text that was streamed."""
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def steps_of(events: Sequence[TurnEvent], name: str | None = None) -> list[ToolStatus]:
    """The steps of the tool calls, or of those of one tool."""
    steps = [event for event in events if isinstance(event, ToolStep)]
    return [step.status for step in steps if name in (None, step.call.name)]


def done_of(events: Sequence[TurnEvent]) -> Done:
    """The last event, which must be `done`."""
    last = events[-1]
    assert isinstance(last, Done), last
    return last


def is_step(status: ToolStatus, name: str | None = None) -> Callable[[TurnEvent], bool]:
    """Whether an event is such a step."""
    return lambda event: isinstance(event, ToolStep) and event.status is status and name in (None, event.call.name)


def is_text(text: str) -> Callable[[TurnEvent], bool]:
    """Whether an event is this piece of text."""
    return lambda event: event == TextDelta(text)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
