"""One running turn: the task that answers it, writes its log and commits its end."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic, TypeVar

from callstream_runtime.logs import set_log_ids, turn_ids
from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.ports import Credentials, TurnLogs
from dialog_engine.chat.service import ChatService, Draft
from dialog_engine.errors import CredentialRevokedError, EngineError, LLMError, StorageUnavailableError, TurnFencedError
from dialog_engine.model import DoneReason, Turn, TurnEvent, TurnFailed
from dialog_engine.sideband import run_shielded

log = logging.getLogger(__name__)

T = TypeVar("T")

FINISH_RETRY_SECONDS = 2.0
"""How often the end of a turn is committed again while the store is unavailable."""
_INTERNAL_ERROR = "internal error"


@dataclass(frozen=True, slots=True)
class _Ending:
    reason: DoneReason
    failure: TurnFailed | None = None


class RunningTurn:
    """A turn that this engine owns. Its task is `run`; whoever creates the task calls `finish` when it is done."""

    def __init__(
        self,
        turn: Turn,
        service: ChatService,
        logs: TurnLogs,
        outages: OutageLog,
        credentials: Credentials,
        *,
        draft: Draft | None = None,
        answer: "PrefetchedStream[TurnEvent] | None" = None,
        failure: EngineError | None = None,
    ) -> None:
        """`answer` is the reply with its `draft`, where the model was asked already. With a `failure` the turn is ended
        and not answered."""
        self.turn = turn
        self.fenced = False
        """Whether another engine has taken the turn over."""
        self._service = service
        self._logs = logs
        self._log = logs.open(turn)
        self._outages = outages
        self._credentials = credentials
        self._draft = draft or Draft.of(turn)
        self._answer = answer
        self._failure = failure
        self._stopped = False
        self._replying: asyncio.Timeout | None = None
        self.finished = asyncio.get_running_loop().create_future()
        """The last event is in the log, or the task has ended without it: the turn is left to another life."""

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
        """Another engine owns the turn: nothing more is written here, and its readers follow the new owner's log."""
        self.fenced = True
        self._logs.moved(self.turn)

    @property
    def tokens(self) -> int:
        """The tokens that the turn has used so far."""
        return self._draft.usage.input_tokens + self._draft.usage.output_tokens

    async def run(self) -> None:
        """Answer the turn and end it. The log ends with `done` unless the turn is fenced, or this is cancelled because
        the engine shuts down."""
        set_log_ids(turn_ids(self.turn))
        try:
            try:
                await self._write(self._service.opening(self.turn))
                ending = await self._ending()
                await run_shielded(self._end(ending))
            except TurnFencedError:
                log.info("turn %s is owned by another engine", self.turn.turn_id)
                self.fence()
            except StorageUnavailableError as error:
                self._outages.failed(error)
                await self._fail(error)
            except Exception as error:
                log.exception("turn %s failed", self.turn.turn_id)
                await self._fail(error)
        finally:
            await self._close_log()

    async def _ending(self) -> _Ending:
        if self.turn.epoch > 1 and await self._credentials.revoked(self.turn.credential):
            self.stop(CredentialRevokedError())  # nothing of it may begin here before the next check
        return await self._reply() if self._failure is None else self._early_end()

    def _early_end(self) -> _Ending:
        if self._failure is None:
            return _Ending(DoneReason.CANCELLED)
        return _Ending(DoneReason.ERROR, TurnFailed(self._failure.code, str(self._failure)))

    async def _reply(self) -> _Ending:
        """Write the reply into the log until it is complete, or until the user stops the turn."""
        reply = self._answer.all() if self._answer else self._service.stream_reply(self.turn, self._draft)
        scope = asyncio.timeout(0 if self._stopped else None)
        try:
            async with scope:
                self._replying = scope
                await self._write(reply)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise RuntimeError("the reply was cancelled") from None
        except Exception as error:
            if scope.expired():
                return self._early_end()
            if isinstance(error, LLMError):
                return _Ending(DoneReason.ERROR, TurnFailed(error.code, str(error)))
            raise
        finally:
            self._replying = None
        return _Ending(self._draft.reason)

    async def _write(self, events: AsyncGenerator[TurnEvent]) -> None:
        async with aclosing(events):
            async for event in events:
                if not self.fenced:
                    self._log.append(event)

    async def _end(self, ending: _Ending) -> None:
        await self._write(self._service.end(self.turn, self._draft, ending.reason, ending.failure))
        self.finish()

    async def _fail(self, error: Exception) -> None:
        """End the turn as failed. While the store is unavailable the user sees the end before it is committed."""
        known = isinstance(error, EngineError)
        failure = TurnFailed(error.code, str(error)) if known else TurnFailed(EngineError.code, _INTERNAL_ERROR)
        if not isinstance(error, StorageUnavailableError):
            try:
                await run_shielded(self._end(_Ending(DoneReason.ERROR, failure)))
                return
            except TurnFencedError:
                self.fence()
                return
            except Exception:
                log.exception("the end of turn %s cannot be committed", self.turn.turn_id)
        self._log.append(failure)
        self._log.append(self._draft.done(self.turn.turn_id, DoneReason.ERROR))
        self.finish()
        while True:
            if await self._committed_end(failure):
                return
            await asyncio.sleep(FINISH_RETRY_SECONDS)

    async def _committed_end(self, failure: TurnFailed) -> bool:
        """Commit the end that the user has seen. False when it must be tried again."""
        try:
            async for _ in self._service.end(self.turn, self._draft, DoneReason.ERROR, failure):
                pass  # the user has seen it
        except TurnFencedError:
            return True  # its new owner ends it
        except StorageUnavailableError as error:
            self._outages.failed(error)
            return False
        except Exception:
            log.exception("the end of turn %s cannot be committed", self.turn.turn_id)
            return False
        self._outages.worked()
        return True

    async def _close_log(self) -> None:
        try:
            await self._log.close()
        except Exception:
            log.exception("the log of turn %s cannot be closed", self.turn.turn_id)


class PrefetchedStream(Generic[T]):
    """A generator that is already producing its first item. Its owner reads `all`, or must `close` it.

    The first item is produced in another task than the others, so the generator must not hold a timeout or a task group
    over a yield.
    """

    def __init__(self, items: AsyncGenerator[T]) -> None:
        self._items = items
        self._first: asyncio.Task[list[T]] | None = asyncio.create_task(self._next(), name="prefetched item")

    async def all(self) -> AsyncGenerator[T]:
        """Every item. Closing this closes the generator. Raises what the generator raises."""
        try:
            first = await self._first if self._first else []
            self._first = None
            for item in first:
                yield item
            async for item in self._items:
                yield item
        finally:
            await self.close()

    async def close(self) -> None:
        """Cancel the first item if it is being produced, and close the generator."""
        if self._first:
            self._first.cancel()
            await asyncio.gather(self._first, return_exceptions=True)  # nobody reads it any more, nor its error
        await self._items.aclose()

    async def _next(self) -> list[T]:
        async for item in self._items:
            return [item]
        return []
