"""Who owns a running turn: a task of the engine, not the connection that asked for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from dialog_engine.chat.head_start import HeadStart
from dialog_engine.chat.ports import TurnLog, TurnLogs, TurnStore
from dialog_engine.chat.service import ChatService, Draft
from dialog_engine.errors import EngineError, LLMError, StorageUnavailableError
from dialog_engine.model import Choice, Done, DoneReason, Turn, TurnEvent, TurnFailed, UserMessage
from dialog_engine.tool_calls.commits import to_its_end
from plugins_contract.ids import new_id

log = logging.getLogger(__name__)

FINISH_RETRY_SECONDS = 2.0
_MISTAKE = "the engine made a mistake"


def _not_yet() -> asyncio.Future[None]:
    return asyncio.get_running_loop().create_future()


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


@dataclass(slots=True)
class _Running:
    turn: Turn
    log: TurnLog
    draft: Draft
    stop: asyncio.Future[None] = field(default_factory=_not_yet)
    """Its user has stopped it."""
    told: asyncio.Future[None] = field(default_factory=_not_yet)
    """Its last event is in the log, or it is left for the next life."""
    answer: HeadStart[TurnEvent] | None = None
    """Its answer, where that has been begun already."""
    failure: EngineError | None = None
    """Why it is to be ended and not answered."""
    task: asyncio.Task[None] | None = None
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class _Ending:
    reason: DoneReason
    failure: TurnFailed | None = None


class RunningTurns:
    """The turns that this engine runs."""

    def __init__(self, service: ChatService, store: TurnStore, logs: TurnLogs) -> None:
        self._service = service
        self._store = store
        self._logs = logs
        self._running: dict[str, _Running] = {}
        self.on_end: Callable[[Turn], None] = lambda _: None
        """Told of each turn that does not run here any more. It must not wait."""

    def __len__(self) -> int:
        return len(self._running)

    def running(self) -> list[Turn]:
        """Those that run now."""
        return [running.turn for running in self._running.values()]

    def runs(self, turn_id: str) -> bool:
        """Whether that turn runs here."""
        return turn_id in self._running

    async def start(
        self,
        subject: str,
        session_id: str | None,
        text: str,
        traceparent: str | None = None,
        *,
        turn_id: str | None = None,
        choice: Choice = Choice(),
    ) -> Turn:
        """Commit the user's message and run the turn; in a new session when none is given.

        Once the commit is on its way the turn runs, whether or not the caller is still there.

        Raises:
            SessionNotFoundError, TurnRunningError, StorageUnavailableError: nothing was begun.
        """
        turn = Turn(turn_id or new_id(), session_id or new_id(), subject, traceparent=traceparent, choice=choice)
        if session_id is None:
            await to_its_end(self._begin_session(turn, text))
        else:
            await to_its_end(self._begin(turn, text))
        return turn

    async def _begin(self, turn: Turn, text: str) -> None:
        await self._store.begin(turn, text)
        self.own(turn)

    async def _begin_session(self, turn: Turn, text: str) -> None:
        """Nothing need be read, so the model is asked beside the commit; what it says is heard only after it."""
        draft = Draft()
        answer = HeadStart(self._service.stream_reply(turn, draft, [UserMessage(text)]))
        try:
            await self._store.begin(turn, text, new_session=True)
        except BaseException:
            await answer.drop()
            raise
        self._own(_Running(turn, self._logs.open(turn), draft, answer=answer))

    async def cancel(self, turn_id: str) -> bool:
        """Stop a turn and wait until its last event is told. False when it does not run here, or not to its end."""
        running = self._running.get(turn_id)
        if running is None:
            return False
        _done(running.stop)
        await asyncio.wait([running.told])
        return not running.dropped

    def stop(self, turn_id: str) -> None:
        """Stop a turn, if it runs here."""
        if running := self._running.get(turn_id):
            _done(running.stop)

    def passed_over(self, turn_id: str) -> None:
        """Another engine runs the turn: nothing more is told of it here. `drop` it when there is time."""
        if running := self._running.get(turn_id):
            running.dropped = True

    async def drop(self, turn_id: str) -> None:
        """Another engine runs the turn: close its stream at the model and end nothing of it."""
        running = self._running.get(turn_id)
        if running is None or running.task is None:
            return
        running.dropped = True
        self._logs.moved(running.turn)
        running.task.cancel()
        await asyncio.wait([running.task])

    async def close(self, grace_seconds: float) -> list[Turn]:
        """Let turns end for a while, then leave the rest: they stay unfinished, and the next life goes on with them.

        A turn that is just ending is not cut: see `to_its_end`. One that begins meanwhile, such as that of a message
        that waited for another, is treated likewise. Returns the rest.
        """
        loop = asyncio.get_running_loop()
        ends_at = loop.time() + grace_seconds
        left = grace_seconds
        while left >= 0 and (tasks := self._tasks()):
            await asyncio.wait(tasks, timeout=left)
            left = ends_at - loop.time()
        rest: list[Turn] = []
        while tasks := self._tasks():
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            rest += [turn for task, turn in tasks.items() if task.cancelled()]
        return rest

    def _tasks(self) -> dict[asyncio.Task[None], Turn]:
        return {running.task: running.turn for running in self._running.values() if running.task}

    def own(self, turn: Turn, *, stopped: bool = False, failure: EngineError | None = None) -> None:
        """Run a turn that is committed; `stopped` when its user has stopped it already. With a `failure` it is ended,
        not answered."""
        running = _Running(turn, self._logs.open(turn), Draft(usage=turn.usage), failure=failure)
        if stopped:
            _done(running.stop)
        self._own(running)

    def _own(self, running: _Running) -> None:
        self._running[running.turn.turn_id] = running
        running.task = asyncio.create_task(self._run(running), name=f"turn {running.turn.turn_id}")
        running.task.add_done_callback(lambda _: self._forget(running))

    def _forget(self, running: _Running) -> None:
        del self._running[running.turn.turn_id]
        _done(running.told)
        self.on_end(running.turn)

    async def _run(self, running: _Running) -> None:
        """The life of a turn. Whatever happens, its log ends with `done`, unless the engine itself goes down."""
        try:
            try:
                await self._tell(running, self._service.opening(running.turn))
                ending = await self._ending(running)
                await to_its_end(self._end(running, ending))
            except Exception as error:
                log.exception("turn %s cannot go on", running.turn.turn_id)
                await self._give_up(running, error)
        finally:
            await self._close_log(running)

    async def _ending(self, running: _Running) -> _Ending:
        if running.failure is None:
            return await self._answered_or_stopped(running)
        return _Ending(DoneReason.ERROR, TurnFailed(running.failure.code, str(running.failure)))

    async def _answered_or_stopped(self, running: _Running) -> _Ending:
        """Answer until the answer is there, or its user stops it: how it ended."""
        begun, turn = running.answer, running.turn
        reply = begun.all() if begun else self._service.stream_reply(turn, running.draft)
        answering = asyncio.create_task(self._tell(running, reply), name=f"answer of turn {turn.turn_id}")
        try:
            await asyncio.wait({answering, running.stop}, return_when=asyncio.FIRST_COMPLETED)
            cut = not answering.done()
        finally:
            answering.cancel()
            await asyncio.wait([answering])
        error = RuntimeError("cancelled by nobody") if answering.cancelled() else answering.exception()
        match error:
            case None:
                return _Ending(running.draft.reason)
            case _ if cut:
                return _Ending(DoneReason.CANCELLED)
            case LLMError():
                return _Ending(DoneReason.ERROR, TurnFailed(error.code, str(error)))
            case _:
                raise error

    async def _tell(self, running: _Running, events: AsyncGenerator[TurnEvent]) -> None:
        async with aclosing(events):
            async for event in events:
                if not running.dropped:
                    running.log.append(event)

    async def _end(self, running: _Running, ending: _Ending) -> None:
        await self._tell(running, self._service.end(running.turn, running.draft, ending.reason, ending.failure))
        _done(running.told)

    async def _give_up(self, running: _Running, error: Exception) -> None:
        """End it as failed; with storage away the user is told at once, and the database as soon as it can be."""
        known = isinstance(error, EngineError)
        failure = TurnFailed(error.code, str(error)) if known else TurnFailed(EngineError.code, _MISTAKE)
        if not isinstance(error, StorageUnavailableError):
            try:
                await to_its_end(self._end(running, _Ending(DoneReason.ERROR, failure)))
                return
            except Exception:
                log.exception("turn %s cannot be ended", running.turn.turn_id)
        running.log.append(failure)
        draft = running.draft
        running.log.append(Done(running.turn.turn_id, DoneReason.ERROR, draft.usage, draft.ttft_ms, draft.model))
        _done(running.told)
        while True:
            if await self._ended_quietly(running, failure):
                return
            await asyncio.sleep(FINISH_RETRY_SECONDS)

    async def _ended_quietly(self, running: _Running, failure: TurnFailed) -> bool:
        """Whether the end that the user was told of is in the database too, as it should be by now."""
        try:
            async for _ in self._service.end(running.turn, running.draft, DoneReason.ERROR, failure):
                pass  # told already
        except StorageUnavailableError as error:
            log.warning("turn %s cannot be ended in the database yet: %s", running.turn.turn_id, error)
            return False
        except Exception:
            log.exception("turn %s cannot be ended in the database yet", running.turn.turn_id)
            return False
        return True

    async def _close_log(self, running: _Running) -> None:
        try:
            await running.log.close()
        except Exception:
            log.exception("the log of turn %s cannot be closed", running.turn.turn_id)
