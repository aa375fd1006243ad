"""Who owns a running turn: a task of the engine, not the connection that asked for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field

from dialog_engine.chat.head_start import HeadStart
from dialog_engine.chat.ports import Control, TurnLog, TurnLogs, TurnStore
from dialog_engine.chat.service import ChatService, Draft
from dialog_engine.chat.session_queue import SessionQueue, woken
from dialog_engine.errors import (
    EngineError,
    LLMError,
    StorageUnavailableError,
    TurnFencedError,
    TurnRunningError,
)
from dialog_engine.model import Choice, Done, DoneReason, Turn, TurnEvent, TurnFailed, UserMessage
from dialog_engine.tool_calls.shielding import run_shielded
from plugins_contract.ids import new_id

log = logging.getLogger(__name__)

FINISH_RETRY_SECONDS = 2.0
QUEUE_SECONDS = 60.0
"""How long a message waits at most for the running turn of its session, when its user asked for that."""
ASK_AGAIN_SECONDS = 2.0
"""How often a message that waits asks for its session without being woken."""
POLL_SECONDS = 0.1
"""How often the end of a turn of another engine is looked for."""
_MISTAKE = "internal error"


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

    def __init__(self, service: ChatService, store: TurnStore, logs: TurnLogs, control: Control) -> None:
        self._service = service
        self._store = store
        self._logs = logs
        self._control = control
        self._running: dict[str, _Running] = {}
        self._beginning: set[str] = set()
        self.queue = SessionQueue()
        """The messages that wait here for the running turn of their session."""

    def __len__(self) -> int:
        return len(self._running)

    def running(self) -> list[Turn]:
        """Those that run now."""
        return [running.turn for running in self._running.values()]

    def knows(self, turn_id: str) -> bool:
        """Whether that turn runs here, or is just being committed here."""
        return turn_id in self._running or turn_id in self._beginning

    async def start(
        self,
        subject: str,
        session_id: str | None,
        text: str,
        traceparent: str | None = None,
        *,
        queue: bool = False,
        choice: Choice = Choice(),
    ) -> Turn:
        """Commit the user's message and run the turn here; in a new session when none is given.

        Once the commit is on its way the turn runs, whether or not the caller is still there. With `queue` the message
        waits for its session behind those that came before it, at whichever engine; one whose caller goes away
        meanwhile (is cancelled) is not accepted.

        Raises:
            SessionNotFoundError, StorageUnavailableError: nothing was begun.
            TurnRunningError: likewise; with `queue`, after having waited for QUEUE_SECONDS.
        """
        turn = Turn(new_id(), session_id or new_id(), subject, traceparent=traceparent, choice=choice)
        if session_id is None:
            await run_shielded(self._begin_session(turn, text))
        elif queue:
            await self._begin_in_line(turn, text)
        else:
            await run_shielded(self._begin(turn, text))
        return turn

    async def _begin(self, turn: Turn, text: str, *, queue: bool = False) -> None:
        self._beginning.add(turn.turn_id)
        try:
            await self._store.begin(turn, text, queue=queue)
            self.own(turn)
        finally:
            self._beginning.discard(turn.turn_id)

    async def _begin_session(self, turn: Turn, text: str) -> None:
        """Nothing need be read, so the model is asked beside the commit; what it says is heard only after it."""
        draft, committed = Draft(), asyncio.Event()
        answer = HeadStart(self._service.stream_reply(turn, draft, [UserMessage(text)], committed))
        self._beginning.add(turn.turn_id)
        try:
            await self._store.begin(turn, text, new_session=True)
            committed.set()
            self._own(_Running(turn, self._logs.open(turn), draft, answer=answer))
        except BaseException:
            await answer.drop()
            raise
        finally:
            self._beginning.discard(turn.turn_id)

    async def _begin_in_line(self, turn: Turn, text: str) -> None:
        loop = asyncio.get_running_loop()
        gives_up_at = loop.time() + QUEUE_SECONDS
        with self.queue.waiting(turn.session_id, turn.turn_id) as wake:
            try:
                while True:
                    try:
                        return await run_shielded(self._begin(turn, text, queue=True))
                    except TurnRunningError as error:
                        left = gives_up_at - loop.time()
                        if left <= 0:
                            raise TurnRunningError(error.turn_id, waited_seconds=QUEUE_SECONDS) from None
                    await woken(wake, min(left, ASK_AGAIN_SECONDS))
            except BaseException:
                if not self.knows(turn.turn_id):
                    with suppress(StorageUnavailableError):  # it is removed with the next renewal of the lease
                        await run_shielded(self._store.leave(turn))
                self.queue.wake(turn.session_id)
                raise

    async def cancel(self, turn_id: str) -> bool:
        """Stop a turn, wherever it runs, and wait until its last event is in its log. Whether it ran.

        Raises:
            StorageUnavailableError: it runs elsewhere, and its engine cannot be asked now.
        """
        ran = False
        while not await self._cancel_here(turn_id):
            if await self._store.request_stop(turn_id) is None:
                return ran
            ran = True
            self._control.stop(turn_id)
            while turn_id not in self._running and await self._store.is_running(turn_id):  # noqa: ASYNC110 -- a row
                await asyncio.sleep(POLL_SECONDS)
        return True

    async def _cancel_here(self, turn_id: str) -> bool:
        """False when it does not run here, or not to its end."""
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

    async def drop(self, turn: Turn) -> None:
        """Another engine runs the turn: close its stream at the model and end nothing of it."""
        running = self._running.get(turn.turn_id)
        if running is None or running.task is None or running.turn.epoch != turn.epoch:
            return
        self._fenced(running)
        running.task.cancel()
        await asyncio.wait([running.task])

    def _fenced(self, running: _Running) -> None:
        """Nothing more of the turn is shown from here; its readers go on with its new owner's log."""
        running.dropped = True
        self._logs.moved(running.turn)

    async def close(self, grace_seconds: float) -> list[Turn]:
        """Let turns end for a while, then leave the rest: they stay unfinished, and the next life goes on with them.

        A turn that is just ending is not cut: see `run_shielded`. One that begins meanwhile, such as that of a message
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
        if (earlier := self._running.get(turn.turn_id)) and earlier.task:
            # It was another engine's in between, and this one has not noticed.
            self._fenced(earlier)
            earlier.task.cancel()
        running = _Running(turn, self._logs.open(turn), Draft(usage=turn.usage), failure=failure)
        if stopped:
            _done(running.stop)
        self._own(running)

    def _own(self, running: _Running) -> None:
        self._running[running.turn.turn_id] = running
        running.task = asyncio.create_task(self._run(running), name=f"turn {running.turn.turn_id}")
        running.task.add_done_callback(lambda _: self._forget(running))

    def _forget(self, running: _Running) -> None:
        if self._running.get(running.turn.turn_id) is running:  # else it was adopted anew meanwhile
            del self._running[running.turn.turn_id]
        _done(running.told)
        self.queue.wake(running.turn.session_id)

    async def _run(self, running: _Running) -> None:
        """The life of a turn. Whatever happens, its log ends with `done`, unless the engine itself goes down."""
        try:
            try:
                await self._tell(running, self._service.opening(running.turn))
                ending = await self._ending(running)
                await run_shielded(self._end(running, ending))
            except TurnFencedError:
                log.info("turn %s is run by another engine", running.turn.turn_id)
                self._fenced(running)
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
                await run_shielded(self._end(running, _Ending(DoneReason.ERROR, failure)))
                return
            except TurnFencedError:
                self._fenced(running)
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
        except TurnFencedError:
            return True  # its new owner goes on with it, and says so
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
