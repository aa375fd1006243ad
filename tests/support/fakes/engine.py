"""The whole core among its fakes, and how to read what it tells."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import KW_ONLY, dataclass, field
from typing import Self

from callstream_runtime.clock import RedisClock
from dialog_engine.chat.history import Memory
from dialog_engine.chat.ports import TurnLimits, TurnSlot
from dialog_engine.chat.service import ChatService
from dialog_engine.chat.times import TurnTimes
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.chat.waiting_queue import WaitingQueue
from dialog_engine.errors import ApprovalDecidedError
from dialog_engine.identity.authenticator import NoCredentials
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    ChatEvent,
    Done,
    TextDelta,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
)
from dialog_engine.observe.observed import log_refused_call
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.execution import Rounds
from dialog_engine.tool_calls.exposure.exposure import Exposure
from dialog_engine.tool_calls.local_tools import LocalTool
from dialog_engine.tool_calls.pipeline import enhance
from dialog_engine.tool_calls.planning import DEFAULT_LIMITS, CallLimits
from dialog_engine.tool_calls.ports import OpenChat, ToolSource
from dialog_engine.tool_calls.processors import standard_pipeline
from dialog_engine.tool_calls.questions.pending import PendingQuestions
from dialog_engine.tool_calls.results.read_result import ReadResult
from dialog_engine.tool_calls.results.texts import RESULT_MAX_CHARS
from dialog_engine.tool_calls.values import Decision, Given
from plugins_contract.encryption import CLEAR
from tests.support.engine_stores import NotedFrees
from tests.support.fakes.logs import MemoryLog, MemoryLogs
from tests.support.fakes.stores import MemoryStore
from tests.support.fakes.worker import FakeCatalog, FakeWorker
from tests.support.waiting import wait_until


@dataclass(eq=False)
class FakeEngine:
    """The core of an engine among fakes. `restart` gives it another life with the same world around it."""

    model: OpenChat
    _: KW_ONLY
    tools: ToolSource = field(default_factory=FakeCatalog)
    worker: FakeWorker = field(default_factory=FakeWorker)
    store: MemoryStore = field(default_factory=MemoryStore)
    max_rounds: int = 5
    system_prompt: str = ""
    approval_seconds: float = 60
    local: Sequence[LocalTool] = ()
    exposure: Exposure | None = None
    result_max_chars: int = RESULT_MAX_CHARS
    limits: CallLimits = DEFAULT_LIMITS
    parks: bool = False
    """Whether turns that wait for people only are parked."""

    def __post_init__(self) -> None:
        self.logs = MemoryLogs()
        self.clock = RedisClock()
        self.decided: list[ApprovalStatus] = []
        self.turns = self._engine()

    async def __aenter__(self) -> Self:
        self._looking = asyncio.create_task(self._look(), name="pending approvals")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._looking.cancel()
        await self.turns.close(0)
        await self.worker.close()

    async def turn(self, text: str, session_id: str | None = None, *, subject: str = "someone") -> list[TurnEvent]:
        turn = await self.turns.start(subject, session_id, text)
        return await self.seen(turn)

    async def begun(self, text: str, condition: Callable[[TurnEvent], bool]) -> Turn:
        """A new turn, when the user has seen such an event of it."""
        turn = await self.turns.start("ada", None, text)
        await self.until(turn, condition)
        return turn

    async def decide(self, correlation_id: str, given: Given) -> Decision:
        """What a person says about a call, as `Approvals` takes it.

        Raises:
            ApprovalError: it cannot be taken.
        """
        while asked := self.store.asked(correlation_id):
            if decision := await self.pending.decide(*asked, given):
                return decision
        raise ApprovalDecidedError("this call waits no more")

    async def seen(self, turn: Turn) -> list[TurnEvent]:
        """What the user saw of the turn's present life, when it has ended."""
        await wait_until(lambda: self._life(turn).closed, what=f"the end of {self._life(turn).events}")
        return self._life(turn).events

    async def until(self, turn: Turn, condition: Callable[[TurnEvent], bool]) -> None:
        """Wait until the user has seen such an event in the turn's present life."""
        await wait_until(lambda: any(map(condition, self._life(turn).events)), what="the event")

    async def question(self, turn: Turn) -> ApprovalStep:
        """The last question that the user was asked in the turn's present life."""
        await self.until(turn, is_asked)
        return [event for event in self._life(turn).events if isinstance(event, ApprovalStep)][-1]

    async def restart(self) -> int:
        """The engine dies where it stands, and another one takes over. How many turns it resumes."""
        await self.turns.close(0)
        self.turns = self._engine()
        adopted = await self.store.engines.adopt_own(None)
        for each in adopted:
            self.turns.run(each.turn, stopped=each.stopped)
        self._looking.cancel()
        self._looking = asyncio.create_task(self._look(), name="pending approvals")
        return len(adopted)

    async def _look(self) -> None:
        await self.pending.run()

    def _life(self, turn: Turn) -> MemoryLog:
        return self.logs.lives[turn.turn_id][-1]

    def _engine(self) -> RunningTurns:
        self.pending = PendingApprovals(
            self.store.approvals,
            self.tools,
            self.worker,
            now_ms=self.clock.now_ms,
            timeout_seconds=self.approval_seconds,
            note=self.decided.append,
        )
        self.questions = PendingQuestions(
            self.store.questions,
            self.tools,
            cipher=CLEAR,
            now_ms=self.clock.now_ms,
            timeout_seconds=60,
            call_timeout_ms=60_000,
        )
        rounds = Rounds(
            self.store.calls, self.worker, self.pending, self.questions, self.result_max_chars, log_refused_call
        )
        self.pipeline = standard_pipeline(
            source=self.tools, rounds=rounds, system_prompt=self.system_prompt, max_rounds=self.max_rounds,
            local=self.local, exposure=self.exposure, reader=ReadResult(self.store.results, self.result_max_chars),
            limits=self.limits,
        )  # fmt: skip
        service = ChatService(
            enhance(self.model, self.pipeline),
            turns=self.store.turns,
            history=self.store.archive,
            approvals=self.store.approvals,
            rounds=rounds,
            memory=Memory(100, 10_000),
        )
        times = TurnTimes(finish_retry=0.01)
        queue = WaitingQueue(self.store.waiting, NoCredentials(), NoLimits(), times.look)
        park = self.store.parked.park if self.parks else None
        return RunningTurns(
            service, self.store.turns, self.logs, NotedFrees(), NoCredentials(), queue, times, park=park
        )


class NoLimits(TurnLimits, TurnSlot):
    """Every subject may run as many turns as it likes."""

    async def tokens_left(self, subject: str) -> None:
        pass

    async def turn(self, subject: str) -> TurnSlot:
        return self

    def resumed(self, subject: str) -> TurnSlot:
        return self

    def count_until_end(
        self, slot: TurnSlot, turn: Turn, when_ended: Callable[[str, Callable[[int], None]], None]
    ) -> None:
        pass

    async def release(self) -> None:
        pass


async def read_all(opening: Awaitable[ModelStream]) -> tuple[list[ChatEvent], Exception | None]:
    """All that a chat stream says, and the error it ends with, if any."""
    seen: list[ChatEvent] = []
    try:
        async with aclosing(await opening) as events:
            async for event in events:
                seen.append(event)  # noqa: PERF401 -- what was said before an error counts
    except Exception as error:  # noqa: BLE001 -- it is what is asked for
        return seen, error
    return seen, None


async def breathe() -> None:
    """Let every task go on as far as it can without the outside world."""
    for _ in range(20):
        await asyncio.sleep(0)


def text_of(events: Sequence[TurnEvent | ChatEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


def steps_of(events: Sequence[TurnEvent], name: str | None = None) -> list[ToolStatus]:
    """The steps of the tool calls, or of those of one tool."""
    steps = [event for event in events if isinstance(event, ToolStep)]
    return [step.status for step in steps if name in (None, step.call.tool_name)]


def done_of(events: Sequence[TurnEvent]) -> Done:
    """The last event, which must be `done`."""
    last = events[-1]
    assert isinstance(last, Done), last
    return last


def is_step(status: ToolStatus, name: str | None = None) -> Callable[[TurnEvent], bool]:
    return lambda event: isinstance(event, ToolStep) and event.status is status and name in (None, event.call.tool_name)


def is_asked(event: TurnEvent) -> bool:
    return isinstance(event, ApprovalStep) and event.status is ApprovalStatus.ASKED


def is_text(text: str) -> Callable[[TurnEvent], bool]:
    return lambda event: event == TextDelta(text)
