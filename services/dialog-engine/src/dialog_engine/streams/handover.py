"""Decisions on waiting calls, from the engine that was asked to the one that runs the turn, and the answer back.

A decision lies in the run of its turn until its owner takes it out, or who left it there takes it back: never both.
One that was left there by an engine that could not take it back, because Redis went away, is not taken later: its giver
was told that nothing has changed, and may have thought better of it.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis

from dialog_engine.chat.approvals import Handover, OwnDecisions
from dialog_engine.errors import (
    ApprovalDecidedError,
    ApprovalError,
    ApprovalExpiredError,
    ApprovalStaleError,
    ArgumentsRefusedError,
    EngineError,
    StorageUnavailableError,
    ToolChangedError,
)
from dialog_engine.streams import scripts
from dialog_engine.tool_calls.desk import NotWaitingHereError
from dialog_engine.tool_calls.questions import Approve, Decision, Given, Refuse
from plugins_contract.clock import Clock
from plugins_contract.connections import is_outage
from plugins_contract.ids import new_id
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

TAKEN_SECONDS = 2.0
"""How long a decision waits to be taken, and then to be answered."""
COUNTS_SECONDS = 2 * TAKEN_SECONDS
"""A decision that was left longer ago is not taken: who left it gives up after 3 * TAKEN_SECONDS."""
LOOK_SECONDS = 0.02
_GIVEN = "decision:"
_ANSWER = "answer:"
_NOT_WAITING = "NOT_WAITING"


class _Left(msgspec.Struct, frozen=True, rename="camel"):
    """A decision as it is left, on the clock of Redis: one of `approve` and `refuse`."""

    correlation_id: str
    at: int
    approve: Approve | None = None
    refuse: Refuse | None = None

    @property
    def given(self) -> Given:
        return self.approve or self.refuse or Refuse()


class _Answer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What became of it: the decision, or why it was not taken."""

    decision: Decision | None = None
    code: str = ""
    message: str = ""
    field: str = ""


class RedisHandover(Handover):
    """Both ends of the way, of one engine."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        engine_id: str,
        own: OwnDecisions,
        runs_here: Callable[[str], bool],
        clock: Clock,
    ) -> None:
        """`runs_here` says whether this engine runs a turn."""
        self._redis = redis
        self._keys = keys
        self._engine_id = engine_id
        self._own = own
        self._runs_here = runs_here
        self._clock = clock
        self._rung: asyncio.Queue[str] = asyncio.Queue()

    async def hand_over(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        try:
            async with asyncio.timeout(3 * TAKEN_SECONDS):
                return await self._hand_over(turn_id, correlation_id, given)
        except TimeoutError:
            raise NotWaitingHereError from None
        except Exception as error:
            if is_outage(error):
                raise NotWaitingHereError from error
            raise

    def rung(self, turn_id: str) -> None:
        """Somebody has left a decision on a call of this turn."""
        if self._runs_here(turn_id):
            self._rung.put_nowait(turn_id)

    async def run(self) -> None:
        """Take the decisions that others leave for turns that run here, for ever."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                turn_id = await self._rung.get()
                tasks.create_task(self._take_all(turn_id), name=f"decisions for turn {turn_id}")

    async def _hand_over(self, turn_id: str, correlation_id: str, given: Given) -> Decision:
        run, token, now = self._keys.run(turn_id), new_id(), self._clock.now_ms()
        approves = isinstance(given, Approve)
        left = _Left(correlation_id, now, approve=given) if approves else _Left(correlation_id, now, refuse=given)
        word = msgspec.json.encode({"kind": "decision", "turnId": turn_id})
        args = [self._engine_id, _GIVEN + token, msgspec.json.encode(left), self._keys.engines, word]
        if await scripts.run(self._redis, "hand_over", [run], args) != [b"ASKED"]:
            raise NotWaitingHereError
        answer = await self._answer(run, token)
        if answer is None and await _asked(self._redis.hdel(run, _GIVEN + token)) == 0:
            answer = await self._answer(run, token)  # it was taken in the last moment
        if answer is None:
            raise NotWaitingHereError
        await _asked(self._redis.hdel(run, _ANSWER + token))
        return _decision(answer)

    async def _answer(self, run: str, token: str) -> _Answer | None:
        for _ in range(round(TAKEN_SECONDS / LOOK_SECONDS)):
            data = await _asked(self._redis.hget(run, _ANSWER + token))
            if data is not None:
                return msgspec.json.decode(data, type=_Answer)
            await asyncio.sleep(LOOK_SECONDS)
        return None

    async def _take_all(self, turn_id: str) -> None:
        try:
            run = self._keys.run(turn_id)
            fields: dict[bytes, bytes] = await _asked(self._redis.hgetall(run))
            for name, data in fields.items():
                if name.startswith(_GIVEN.encode()) and await _asked(self._redis.hdel(run, name)) == 1:
                    await self._take(turn_id, name.decode().removeprefix(_GIVEN), data)
        except Exception as error:
            if not is_outage(error):
                log.exception("decisions for turn %s cannot be taken", turn_id)

    async def _take(self, turn_id: str, token: str, data: bytes) -> None:
        try:
            left = msgspec.json.decode(data, type=_Left)
            if self._clock.now_ms() - left.at > COUNTS_SECONDS * 1000:
                return
            answer = _Answer(await self._own.take(turn_id, left.correlation_id, left.given))
        except (NotWaitingHereError, msgspec.DecodeError):
            answer = _Answer(code=_NOT_WAITING)
        except ArgumentsRefusedError as error:
            answer = _Answer(code=error.code, message=error.message, field=error.field)
        except EngineError as error:
            answer = _Answer(code=error.code, message=str(error))
        run = self._keys.run(turn_id)
        await scripts.run(self._redis, "hand_back", [run], [_ANSWER + token, msgspec.json.encode(answer)])


_ERRORS: dict[str, type[EngineError]] = {
    error.code: error
    for error in (
        ApprovalDecidedError,
        ApprovalExpiredError,
        ApprovalStaleError,
        ToolChangedError,
        StorageUnavailableError,
    )
}


def _decision(answer: _Answer) -> Decision:
    """The decision in an answer. Raises what the other engine raised."""
    if answer.decision is not None:
        return answer.decision
    if answer.code == _NOT_WAITING:
        raise NotWaitingHereError
    if answer.code == ArgumentsRefusedError.code:
        raise ArgumentsRefusedError(answer.field, answer.message)
    raise _ERRORS.get(answer.code, ApprovalError)(answer.message)


async def _asked(answer: Any) -> Any:
    """redis-py types some commands as either awaitable or not."""
    return await answer
