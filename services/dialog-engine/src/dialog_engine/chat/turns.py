"""The turns that this engine runs. A turn belongs to a task of the engine, not to the connection that asked for it."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import Any

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.tracing import set_log_ids, traceparent_of_turn, turn_ids
from dialog_engine.chat.ports import Control, Credentials, Park, TurnLogs, TurnStore, Unseen
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.running_turn import RunningTurn
from dialog_engine.chat.service import ChatService
from dialog_engine.chat.times import TurnTimes
from dialog_engine.chat.waiting_queue import Attempt, WaitingQueue
from dialog_engine.errors import CredentialRevokedError, EngineError, TurnFencedError
from dialog_engine.model import NOTHING_BROUGHT, Brought, Choice, Leaving, Turn
from dialog_engine.sideband import run_shielded
from plugins_contract.messages import new_id

log = logging.getLogger(__name__)

POLL_SECONDS = 0.1
"""How often the store is asked whether a turn of another engine has ended."""


class RunningTurns:
    """Starts, stops and shuts down the turns of one engine."""

    def __init__(
        self,
        service: ChatService,
        store: TurnStore,
        logs: TurnLogs,
        control: Control,
        credentials: Credentials,
        queue: WaitingQueue,
        times: TurnTimes = TurnTimes(),
        *,
        park: Park | None = None,
    ) -> None:
        """Without `park` every turn that waits for people waits here."""
        self._times, self._service, self._store = times, service, store
        self._logs, self._control, self._credentials = logs, control, credentials
        self._running: dict[str, RunningTurn] = {}
        self._tasks: dict[asyncio.Task[None], RunningTurn] = {}
        self._beginning: set[str] = set()
        self._outages = OutageLog(log, "the store for the ends of turns")
        self.queue, self._park = queue, park

    def __len__(self) -> int:
        return len(self._running)

    def __iter__(self) -> Iterator[RunningTurn]:
        return iter([*self._running.values()])

    def running(self) -> list[Turn]:
        """The turns that run here now."""
        return [running.turn for running in self._running.values()]

    async def check_credentials(self) -> None:
        """End the turns whose credential is revoked, with what waits in them for approval. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._times.check)
            for running in [*self._running.values()]:
                if (credential := running.turn.credential) and await self._credentials.revoked(credential):
                    running.stop(CredentialRevokedError())

    def when_ended(self, turn_id: str, callback: Callable[[int], None]) -> None:
        """Call back with the tokens that the turn used here, once it has ended or has left this engine."""
        if running := self._running.get(turn_id):
            running.finished.add_done_callback(lambda _: callback(running.tokens))
        else:
            callback(0)

    def knows(self, turn_id: str) -> bool:
        """Whether the turn runs here, or is being committed here."""
        return turn_id in self._running or turn_id in self._beginning

    @contextmanager
    def committing(self, turn_id: str) -> Generator[None]:
        """The turn may become this engine's within the block, which runs it then."""
        self._beginning.add(turn_id)
        try:
            yield
        finally:
            self._beginning.discard(turn_id)

    async def start(
        self,
        subject: str,
        session_id: str | None,
        text: str,
        traceparent: str | None = None,
        *,
        queue: bool = False,
        decline: Callable[[Turn, str, StartingRequest], Awaitable[bool]] | None = None,
        parent: str | None = None,
        choice: Choice = Choice(),
        roles: tuple[str, ...] = (),
        key_id: str = "",
        credential: str = "",
        expires_at: float | None = None,
        request: StartingRequest = StartingRequest(),
        brought: Brought | None = None,
        leaving: Leaving | None = None,
    ) -> Turn:
        """Commit the user's message and run the turn here; in a new session when `session_id` is None. `request` is
        what the client says of its request; everything else: see `Turn`.

        Once the commit has begun, the turn runs even if the caller is cancelled. With `queue` the message waits behind
        those before it (`Turn.waits`), and so it does where `decline`, which is asked first, is True (`ParkedTurns`).

        Raises:
            StorageUnavailableError: nothing was begun.
            EngineError: from `TurnStore.begin`.
        """
        turn_id = new_id()
        turn = Turn(
            turn_id,
            session_id or new_id(),
            subject,
            traceparent=traceparent_of_turn(turn_id, traceparent),
            choice=choice,
            roles=roles,
            key_id=key_id,
            credential=credential,
            parent=parent,
            expires_at=expires_at,
            brought=brought,
            leaving=leaving,
        )
        set_log_ids(turn_ids(turn))
        if session_id is None:
            await run_shielded(self._begin_session(turn, text, request))
            return turn
        if decline and await decline(turn, text, request):
            return replace(turn, waits=True)
        return await run_shielded(self._begin(turn, text, queue, request)) or replace(turn, waits=True)

    async def _begin(self, turn: Turn, text: str, queue: bool, request: StartingRequest) -> Turn | None:
        with self.committing(turn.turn_id):
            if begun := await self._store.begin(turn, text, queue=queue, request=request):
                self.run(begun)
            return begun

    async def _begin_session(self, turn: Turn, text: str, request: StartingRequest) -> None:
        """A new session has no history to read, so the model is asked while the turn is being committed. Its reply is
        used only after the commit."""
        lean = replace(turn, brought=turn.brought and turn.brought.committed())
        running = self._running_turn(lean, said=[*(turn.brought or NOTHING_BROUGHT).messages(text)])
        task = asyncio.create_task(running.run(), name=f"turn {turn.turn_id}")
        with self.committing(turn.turn_id):
            try:
                await self._store.begin(turn, text, new_session=True, request=request)
                self._started(running, task)
            except BaseException:
                task.cancel()
                await asyncio.gather(task, return_exceptions=True)
                raise

    @asynccontextmanager
    async def _next_in(self, session_id: str) -> AsyncGenerator[Attempt | None]:
        """The message that may be next in a session. It runs after the block, if it was `begun` there."""
        async with self.queue.attempt(session_id) as attempt:
            if attempt is None:
                yield None
                return
            turn = attempt.candidate.turn
            with self.committing(turn.turn_id):
                yield attempt
                if attempt.begun:
                    self.run(turn)
            if attempt.begun:
                self.queue.begun(attempt, self.when_ended)

    async def begin_next(self, session_id: str) -> None:
        """Begin the first message of a session, if it may begin now. Raises StorageUnavailableError."""
        await run_shielded(self._begin_next(session_id))

    async def _begin_next(self, session_id: str) -> None:
        async with self._next_in(session_id) as attempt:
            if attempt:
                attempt.begun = await self.queue.store.begin(attempt.candidate)

    async def cancel(self, turn_id: str) -> bool:
        """Stop a turn, wherever it runs, and wait until its last event is in its log. False when it did not run.

        Raises:
            StorageUnavailableError: it runs elsewhere, and its engine cannot be asked now.
        """
        ran = False
        while not await self._cancel_here(turn_id):
            if not await run_shielded(self._request_stop(turn_id)):
                return ran
            ran = True
            while turn_id not in self._running and await self._store.is_running(turn_id):  # noqa: ASYNC110 -- a row
                await asyncio.sleep(POLL_SECONDS)
        return True

    async def _request_stop(self, turn_id: str) -> bool:
        with self.committing(turn_id):
            runs_at = await self._store.request_stop(turn_id)
            if isinstance(runs_at, Turn):  # it was parked
                self.run(runs_at, stopped=True, unseen=())
            elif runs_at:
                self._control.stop(turn_id)
            return runs_at is not None

    async def _cancel_here(self, turn_id: str) -> bool:
        """False when the turn does not run here, or was taken over by another engine before its end."""
        running = self._running.get(turn_id)
        if running is None:
            return False
        running.stop()
        await asyncio.wait([running.finished])
        return not running.fenced

    def stop(self, turn_id: str) -> None:
        """Stop a turn, if it runs here."""
        if turn_id in self._running:
            self._running[turn_id].stop()

    def drop(self, turns: Sequence[Turn]) -> None:
        """Other engines own these turns: close their streams at the model and commit nothing of them.

        This does not wait for their tasks, which a shielded commit may hold for longer than a lease; `close` does.
        """
        for turn in turns:
            if (running := self._running.get(turn.turn_id)) and running.turn.epoch == turn.epoch:
                self._fence(running)

    async def park_again(self) -> None:
        """Park the turns that wait for their user and could not be parked. Raises StorageUnavailableError."""
        for running in [each for each in self._running.values() if each.waits_for_user]:
            with suppress(TurnFencedError):  # its task finds that, too
                if await running.is_parked():
                    self.drop([running.turn])

    def _fence(self, running: RunningTurn) -> None:
        """Fence a turn and cancel its task. From now on it does not run here."""
        del self._running[running.turn.turn_id]
        running.fence()
        for task in [task for task, each in self._tasks.items() if each is running]:
            task.cancel()

    async def close(self, grace_seconds: float) -> list[Turn]:
        """Let turns end for `grace_seconds`, then cancel the rest. Those stay unfinished in the store, and another life
        of the engine, or another engine, resumes them.

        A turn whose end is being committed is not cancelled: see `run_shielded`. A turn that begins meanwhile is
        treated likewise; no message that waits begins any more. Returns the turns that were cancelled.
        """
        self.queue.close()
        loop = asyncio.get_running_loop()
        ends_at, left = loop.time() + grace_seconds, grace_seconds
        while left >= 0 and self._tasks:
            await asyncio.wait([*self._tasks], timeout=left)
            left = ends_at - loop.time()
        unfinished: list[Turn] = []
        while tasks := dict(self._tasks):
            for task, running in tasks.items():
                if not running.fenced:  # otherwise it is cancelled: a second time would break its shield
                    task.cancel()
            await asyncio.wait(tasks)
            unfinished += [running.turn for task, running in tasks.items() if task.cancelled() and not running.fenced]
        return unfinished

    def run(
        self, turn: Turn, *, stopped: bool = False, failure: EngineError | None = None, unseen: Unseen = None
    ) -> None:
        """Run a committed turn. `stopped`: its user has stopped it. `failure` and `unseen`: see `RunningTurn`."""
        if earlier := self._running.get(turn.turn_id):
            self._fence(earlier)  # another engine owned the turn in between, and this one has not noticed
        running = self._running_turn(turn, failure=failure, unseen=unseen)
        if stopped:
            running.stop()
        self._started(running, asyncio.create_task(running.run(), name=f"turn {turn.turn_id}"))

    def _running_turn(self, turn: Turn, **options: Any) -> RunningTurn:
        parts = self._service, self._logs, self._outages, self._credentials, self._times.finish_retry
        return RunningTurn(turn, *parts, next_in=self._next_in, park=self._park, **options)

    def _started(self, running: RunningTurn, task: asyncio.Task[None]) -> None:
        """The turn is committed, and `task` runs it."""
        running.begin()
        self._running[running.turn.turn_id] = running
        self._tasks[task] = running
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        running = self._tasks.pop(task)
        turn_id = running.turn.turn_id
        if not task.cancelled() and (error := task.exception()):
            log.error("the task of turn %s failed", turn_id, exc_info=error)
        if self._running.get(turn_id) is running:  # otherwise the turn was adopted again meanwhile
            del self._running[turn_id]
        running.finish()
