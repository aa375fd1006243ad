"""Who owns a running turn: a task of the engine, not the connection that asked for it."""

import asyncio
import contextlib
import logging
from contextlib import aclosing
from dataclasses import dataclass, field

from dialog_engine.chat.ports import TurnLog, TurnLogs, TurnStore
from dialog_engine.chat.service import ChatService, Draft
from dialog_engine.errors import EngineError, StorageUnavailableError
from dialog_engine.model import Done, DoneReason, Turn, TurnFailed

log = logging.getLogger(__name__)

FINISH_RETRY_SECONDS = 2.0


@dataclass(slots=True)
class _Running:
    turn: Turn
    log: TurnLog
    draft: Draft = field(default_factory=Draft)
    stop: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None


class RunningTurns:
    """The turns that this engine runs."""

    def __init__(self, service: ChatService, store: TurnStore, logs: TurnLogs) -> None:
        self._service = service
        self._store = store
        self._logs = logs
        self._running: dict[str, _Running] = {}

    def __len__(self) -> int:
        return len(self._running)

    async def start(self, subject: str, session_id: str | None, text: str, traceparent: str | None = None) -> Turn:
        """Commit the user's message and run the turn; in a new session when none is given.

        Raises:
            SessionNotFoundError, TurnRunningError, StorageUnavailableError: nothing was begun.
        """
        turn = await self._store.begin(subject, session_id, text, traceparent)
        self._own(turn)
        return turn

    async def resume(self) -> int:
        """Take up the turns that an earlier life of this engine left. Returns how many."""
        turns = await self._store.adopt_unfinished()
        for turn in turns:
            log.info("turn %s goes on in epoch %d", turn.turn_id, turn.epoch)
            self._own(turn)
        return len(turns)

    async def cancel(self, turn_id: str) -> bool:
        """Stop a turn and wait for its end. False when it does not run here."""
        running = self._running.get(turn_id)
        if running is None or running.task is None:
            return False
        running.stop.set()
        await asyncio.wait([running.task])
        return True

    async def close(self, grace_seconds: float) -> None:
        """Let turns end for a while, then leave the rest: they stay unfinished, and the next life goes on with them."""
        tasks = [running.task for running in self._running.values() if running.task]
        if not tasks:
            return
        _, rest = await asyncio.wait(tasks, timeout=grace_seconds)
        for task in rest:
            task.cancel()
        if rest:
            await asyncio.wait(rest)

    def _own(self, turn: Turn) -> None:
        running = _Running(turn, self._logs.open(turn))
        self._running[turn.turn_id] = running
        running.task = asyncio.create_task(self._run(running), name=f"turn {turn.turn_id}")

    async def _run(self, running: _Running) -> None:
        """The life of a turn. Whatever happens, its log ends with `done`, unless the engine itself goes down."""
        try:
            try:
                await self._answer_unless_stopped(running)
            except Exception as error:
                log.exception("turn %s cannot go on", running.turn.turn_id)
                await self._give_up(running, error)
        finally:
            with contextlib.suppress(Exception):
                await running.log.close()
            del self._running[running.turn.turn_id]

    async def _answer_unless_stopped(self, running: _Running) -> None:
        answering = asyncio.create_task(self._answer(running), name=f"answer of turn {running.turn.turn_id}")
        stopped = asyncio.create_task(running.stop.wait(), name=f"stop of turn {running.turn.turn_id}")
        try:
            await asyncio.wait({answering, stopped}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            finished = answering.done()
            for task in (answering, stopped):
                task.cancel()
            await asyncio.wait({answering, stopped})
        if finished or not answering.cancelled():
            answering.result()
            return
        async with aclosing(self._service.stop(running.turn, running.draft)) as events:
            async for event in events:
                running.log.append(event)

    async def _answer(self, running: _Running) -> None:
        async with aclosing(self._service.stream_reply(running.turn, running.draft)) as events:
            async for event in events:
                running.log.append(event)

    async def _give_up(self, running: _Running, error: Exception) -> None:
        """Tell the user at once, and the database as soon as it can be told."""
        code = error.code if isinstance(error, EngineError) else EngineError.code
        failure = TurnFailed(code, str(error) if isinstance(error, EngineError) else "the engine made a mistake")
        running.log.append(failure)
        draft = running.draft
        running.log.append(Done(running.turn.turn_id, DoneReason.ERROR, draft.usage, draft.ttft_ms))
        while True:
            try:
                async for _ in self._service.fail(running.turn, draft, failure):
                    pass  # its events were told already
                return
            except StorageUnavailableError as again:
                log.warning("turn %s cannot be ended in the database yet: %s", running.turn.turn_id, again)
                await asyncio.sleep(FINISH_RETRY_SECONDS)
