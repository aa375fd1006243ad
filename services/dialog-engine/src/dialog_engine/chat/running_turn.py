"""One running turn: the task that answers it, writes its log and commits its end."""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, replace

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.tracing import set_log_ids, turn_ids
from dialog_engine.chat.ports import Credentials, Park, TurnLog, TurnLogs, Unseen
from dialog_engine.chat.read_resources import ReadResources
from dialog_engine.chat.service import ChatService, Draft
from dialog_engine.chat.waiting_queue import Attempt
from dialog_engine.errors import (
    CredentialRevokedError,
    EngineError,
    LLMError,
    StorageUnavailableError,
    TurnFencedError,
    TurnParkedError,
)
from dialog_engine.model import (
    AnsweredBy,
    ChatEvent,
    DoneReason,
    Message,
    ResourceUpdated,
    StreamEnd,
    TokensSpent,
    ToolCallEvent,
    Turn,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    WaitingForUser,
)
from dialog_engine.sideband import SideBand, run_shielded

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Ending:
    reason: DoneReason
    failure: TurnFailed | None = None


class RunningTurn(SideBand):
    """A turn that this engine owns: the task `run`, and the events that it emits into the draft and the log.

    Whoever creates the task calls `begin` when the turn is committed, and `finish` when the task is done.
    """

    def __init__(
        self,
        turn: Turn,
        service: ChatService,
        logs: TurnLogs,
        outages: OutageLog,
        credentials: Credentials,
        finish_retry_seconds: float,
        *,
        next_in: Callable[[str], AbstractAsyncContextManager[Attempt | None]],
        park: Park | None = None,
        said: Sequence[Message] | None = None,
        failure: EngineError | None = None,
        unseen: Unseen = None,
    ) -> None:
        """`next_in` is the message that may be next in a session, for the block that commits the end of this turn and
        sets whether it has begun. `said` is the history of its session, where that is known. With a `failure` the turn
        is ended and not answered."""
        self._finish_retry_seconds, self.turn = finish_retry_seconds, turn
        self.is_adopted = turn.epoch > 1 and unseen is None
        """Whether another engine ran it before, or an earlier life of this one; it was not parked since."""
        self.fenced = False
        """Whether the turn is not this engine's any more: another one has taken it over, or it is parked."""
        self._service, self._logs, self._outages, self._credentials = service, logs, outages, credentials
        self._log: TurnLog | None = None
        self._draft = Draft.of(turn)
        self._next_in, self._park = next_in, park
        self._shown: Mapping[str, str] | None = None
        """What the turn waited for when it was to be parked last."""
        self._parking = asyncio.Lock()
        """Its task and the look for turns that could not be parked may try at the same time."""
        self._unseen, self._said = unseen, said
        self.read = ReadResources()
        self._failure, self._stopped = failure, False
        self._replying: asyncio.Timeout | None = None
        self._committed = asyncio.get_running_loop().create_future()
        self.waits_for_user = False
        """Whether nothing but an answer of its user lets it go on."""
        self.runs_since = time.monotonic()
        """When it began here, or went on after it had waited for its user; on the monotonic clock, in seconds."""
        self.finished = asyncio.get_running_loop().create_future()
        """The last event is in the log, or the task has ended without it: the turn is left to another life."""

    def begin(self) -> None:
        """The turn is committed: open its log, and let events be emitted."""
        self._log = self._logs.open(self.turn)
        if self.turn.epoch == 1:
            self.emit(TurnStarted(self.turn.turn_id, self.turn.session_id))
        self._committed.set_result(None)

    async def ready(self) -> None:
        await self._committed

    async def park(self, shown: Mapping[str, str]) -> None:
        self._shown = shown
        if await run_shielded(self.is_parked()):
            raise TurnParkedError(self.turn.turn_id)

    async def is_parked(self) -> bool:
        """Park the turn, if it waits for people only, and fence it. Raises as `ParkedStore.park`."""
        async with self._parking:
            if self._park is None or self._log is None or self._shown is None or self.fenced:
                return False
            await self._log.settle()
            if parked := await self._park(self.turn, self._shown, self._draft.ttft_ms):
                self.fence()  # here, because whoever waits may be cancelled
            return parked

    def emit(self, event: TurnEvent | ChatEvent) -> None:
        """Update the draft, and append the event to the log, if users see events of its kind."""
        before = self._draft.answered_by
        self._draft.follow(event)
        match event:
            case AnsweredBy(left_out=left_out) if left_out and event != before:
                self._append(event)
            case AnsweredBy() | TokensSpent() | StreamEnd() | ToolCallEvent():
                pass
            case WaitingForUser():
                self.waits_for_user = True
                self._append(replace(event, usage=self._draft.usage))
            case _:
                if self.waits_for_user and not isinstance(event, ResourceUpdated):
                    self.waits_for_user, self.runs_since = False, time.monotonic()
                self.read.follow(event)
                self._append(event)

    def _append(self, event: TurnEvent) -> None:
        if self._log is None:
            raise RuntimeError("an event was emitted before the turn was committed")
        if not self.fenced:
            self._log.append(event)

    def stop(self, failure: EngineError | None = None) -> None:
        """End the turn: as failed, or as cancelled, which its user asked for."""
        if self._stopped:
            return
        self._failure = self._failure or failure
        if self._replying is not None:
            self._replying.reschedule(0)
        self._stopped = True

    def finish(self) -> None:
        """Wake those that wait for the end of the turn."""
        if not self.finished.done():
            self.finished.set_result(None)

    def fence(self) -> None:
        """The turn is not this engine's: nothing more is written here, and its readers follow the log of its owner."""
        self.fenced = True
        self._logs.moved(self.turn)

    @property
    def tokens(self) -> int:
        """The tokens that the turn has used here so far."""
        used = self._draft.usage - self.turn.usage
        return used.input_tokens + used.output_tokens

    async def run(self) -> None:
        """Answer the turn and end it. The log ends with `done` unless the turn is fenced, or this is cancelled because
        the engine shuts down. The model may be asked before the turn is committed; nothing else is done before that."""
        set_log_ids(turn_ids(self.turn))
        try:
            try:
                if self.turn.epoch > 1:
                    await self._go_on()
                ending = await self._ending()
                await self.ready()
                await run_shielded(self._end(ending))
            except TurnFencedError:
                log.info("turn %s is owned by another engine", self.turn.turn_id)
                self.fence()
            except TurnParkedError:
                pass  # it is fenced
            except StorageUnavailableError as error:
                self._outages.failed(error)
                await self._fail(error)
            except Exception as error:
                log.exception("turn %s failed", self.turn.turn_id)
                await self._fail(error)
        finally:
            if self._log is not None:
                await self._log.close()

    async def _go_on(self) -> None:
        """Show what has happened since the turn was parked. Readers get everything anew where that is not the next.

        Where the last owner has shown the end of a failed turn, and died before it was committed, it stays failed."""
        if self._unseen is not None and (waited := await self._logs.waited_for(self.turn)) is not None:
            self._draft = Draft.of(self.turn, waited)
            for event in self._unseen:
                self.emit(event)
            self.read.follow(await self._service.reset(self.turn))
            return
        if await self._logs.has_ended(self.turn):
            self._failure = StorageUnavailableError("the end of this answer could not be stored")
        self.emit(TurnStarted(self.turn.turn_id, self.turn.session_id))
        self.emit(await self._service.reset(self.turn))

    async def _ending(self) -> _Ending:
        if self.turn.epoch > 1 and await self._credentials.revoked(self.turn.credential):
            self.stop(CredentialRevokedError())  # nothing of it may begin here before the next check
        return self._early_end() if self._stopped or self._failure else await self._reply()

    def _early_end(self) -> _Ending:
        if self._failure is None:
            return _Ending(DoneReason.CANCELLED)
        return _Ending(DoneReason.ERROR, TurnFailed(self._failure.code, str(self._failure)))

    async def _reply(self) -> _Ending:
        """Emit the reply until it is complete, or until the user stops the turn."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._replying = scope
                self.emit(await self._service.reply(self.turn, self._draft, self, self._said))
        except asyncio.CancelledError:
            if _is_cancelled():
                raise
            raise RuntimeError("the reply was cancelled") from None
        except TurnParkedError:
            raise  # also when it is cancelled meanwhile: nothing of the turn is left here
        except Exception as error:
            if scope.expired() or _is_cancelled():
                if not isinstance(error, TimeoutError):
                    log.warning("turn %s failed while it was being cancelled", self.turn.turn_id, exc_info=True)
                if not scope.expired():
                    raise asyncio.CancelledError from None
                return self._early_end()
            if isinstance(error, LLMError):
                return _Ending(DoneReason.ERROR, TurnFailed(error.code, str(error)))
            raise
        finally:
            self._replying = None
        return _Ending(self._draft.reason)

    async def _end(self, ending: _Ending) -> None:
        async with self._next_in(self.turn.session_id) as attempt:
            candidate = attempt and attempt.candidate
            begun = await self._service.end(self.turn, self._draft, self.emit, ending.reason, ending.failure, candidate)
            if attempt:
                attempt.begun = begun
        self.finish()

    async def _fail(self, error: Exception) -> None:
        """End the turn as failed. While the store is unavailable the user sees the end before it is committed."""
        await self.ready()
        known = isinstance(error, EngineError)
        failure = TurnFailed(error.code, str(error)) if known else TurnFailed(EngineError.code, "internal error")
        away = isinstance(error, StorageUnavailableError)
        if not away and await run_shielded(self._committed_end(failure, self.emit)):
            return
        self.emit(failure)
        self.emit(self._draft.done(self.turn.turn_id, DoneReason.ERROR))
        self.finish()
        while not await self._committed_end(failure, _unseen):  # noqa: ASYNC110 -- a store that is back wakes nobody
            await asyncio.sleep(self._finish_retry_seconds)

    async def _committed_end(self, failure: TurnFailed, emit: Callable[[TurnEvent], None]) -> bool:
        """Commit the end, and emit its events. False when it must be tried again."""
        try:
            await self._service.end(self.turn, self._draft, emit, DoneReason.ERROR, failure)
        except TurnFencedError:  # its new owner ends it
            if not self.finished.done():
                self.fence()
            return True
        except StorageUnavailableError as error:
            self._outages.failed(error)
            return False
        except Exception:
            log.exception("the end of turn %s cannot be committed", self.turn.turn_id)
            return False
        self._outages.worked()
        self.finish()
        return True


def _unseen(event: TurnEvent) -> None:
    """The user has seen an end already."""


def _is_cancelled() -> bool:
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
