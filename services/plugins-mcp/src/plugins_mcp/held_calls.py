"""Calls that this worker keeps open while people are asked: their servers wait for the answer in the middle of them.

The round of the call has ended, with its slot, its lease and its time. The next round brings the answer to this worker,
and ends with what the call ends with. Engines learn from `rpc.plugins.held` of questions that are over before that, and
cancel a call that nobody answers any more.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from redis.asyncio import Redis

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.errors import ErrorCode
from plugins_contract.held import KEPT_SECONDS, LONGEST_SECONDS, HeldCall, HeldState
from plugins_contract.keys import Keys
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress
from plugins_contract.questions import NextRound, call_of_round, round_id
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, Dialogue, InputAsked, Rejected, SendState, TimedOut
from plugins_mcp.running_call import StillOpen

log = logging.getLogger(__name__)

MOST = 200
"""How many calls a worker keeps open. A further question is put to nobody, and ends its call."""
END_SECONDS = 2.0
"""How long a server may take to end a call whose question was answered with `cancel`, before the call is cancelled."""
OVER_SECONDS = 600.0
"""For how long it is kept what no engine has asked for: that addresses were visited, or how a call ended."""


@dataclass(slots=True, eq=False)
class _Held:
    """A call that is open, at the end of the round `asked_in`; `since` is monotonic."""

    work: asyncio.Task[CallResult]
    dialogue: Dialogue
    asked_in: str
    since: float


@dataclass(slots=True)
class _Said:
    """What engines are to know of a round; `since` is monotonic."""

    state: HeldState
    since: float


class HeldCalls:
    """The calls that one worker keeps open, by correlation id."""

    def __init__(self, redis: Redis, keys: Keys, pool: str, *, again_seconds: float, most: int = MOST) -> None:
        """`pool` is that of this worker alone. What is kept is written every `again_seconds`: Redis may lose it."""
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self.pool = pool
        self._again_seconds = again_seconds
        self._most = most
        self._held: dict[str, _Held] = {}
        self._said: dict[str, _Said] = {}
        """By the id of the round."""
        self._unsaid: set[str] = set()
        """The rounds of which nothing is said any more."""
        self._news = asyncio.Event()
        self._ending = set[asyncio.Task[None]]()
        self._closed = False

    def __bool__(self) -> bool:
        return bool(self._held)

    # Called for calls.

    def visited(self, request_id: str, number: int) -> None:
        """The addresses were visited that the server of a call wanted visited in that round of it."""
        self._say(round_id(call_of_round(request_id), number), HeldState.OVER)

    def hold(self, request: ToolCallRequested, still: StillOpen) -> InputAsked | Rejected:
        """Keep a call open whose server has asked. What its round ends with."""
        work, dialogue = still.work, still.dialogue
        call, asked_in = call_of_round(request.correlation_id), request.correlation_id
        result = dialogue.asked.result()
        if isinstance(result, InputAsked) and (self._closed or len(self._held) >= self._most):
            what = f"asked a question while {self._most} others wait for people at this worker"
            result = Rejected(ErrorCode.OVERLOADED, f"the server {what}; nobody was asked, and the call did not go on")
        held = self._held[call] = _Held(work, dialogue, asked_in, time.monotonic())
        if isinstance(result, Rejected):
            self.cancel(call)
            return result
        dialogue.taken_back = lambda: self._over(call, held, HeldState.OVER)
        work.add_done_callback(lambda _: self._over(call, held, _state_of(work)))
        self._say(asked_in, HeldState.OPEN)
        return self._kept(result)

    async def go_on(
        self, request: ToolCallRequested, state: SendState, report: Callable[[CallProgress], None], seconds: float
    ) -> CallResult:
        """Give the server of an open call what its next round brings, and wait for its end or its next question.

        Cancelling this cancels the call.
        """
        call, brings, state.sent = call_of_round(request.correlation_id), state.next_round or NextRound(0), True
        if (held := self._held.get(call)) is None:
            return Ambiguous("nobody keeps the call open any more that the answer is for")
        self._unsay(held.asked_in)
        held.asked_in = request.correlation_id
        try:
            await held.dialogue.go_on(brings, report, seconds)
            await asyncio.wait([held.work, held.dialogue.asked], return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            self.cancel(call)
            return TimedOut(sent=True)
        except asyncio.CancelledError:
            self.cancel(call)
            raise
        if not held.work.done() and isinstance(result := held.dialogue.asked.result(), InputAsked):
            held.since = time.monotonic()
            self._say(held.asked_in, HeldState.OPEN)
            return self._kept(result)
        del self._held[call]
        if not held.work.done():
            self._end(held)
            return held.dialogue.asked.result()
        return _result_of(held.work)

    def cancel(self, request_id: str) -> None:
        """Nobody answers the question of a call any more, of which this is a round: answer `cancel`, and cancel it."""
        call = call_of_round(request_id)
        for each in [each for each in self._said if call_of_round(each) == call]:
            self._unsay(each)
        if (held := self._held.pop(call, None)) is not None:
            self._end(held)

    def _kept(self, result: InputAsked) -> InputAsked:
        return replace(result, required=msgspec.structs.replace(result.required, holder=self.pool))

    def _over(self, call: str, held: _Held, state: HeldState) -> None:
        """The server does not wait any more, or the call has ended, while a person is asked."""
        if self._held.get(call) is not held or held.asked_in not in self._said:
            return  # a round waits for it
        if state is HeldState.LOST:
            del self._held[call]
        self._say(held.asked_in, state)

    def _end(self, held: _Held) -> None:
        task = asyncio.create_task(_ended(held), name=f"end of the open call {held.asked_in}")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)

    # What engines are to know.

    def _say(self, asked_in: str, state: HeldState) -> None:
        self._said[asked_in] = _Said(state, time.monotonic())
        self._unsaid.discard(asked_in)
        self._news.set()

    def _unsay(self, asked_in: str) -> None:
        if self._said.pop(asked_in, None) is not None:
            self._unsaid.add(asked_in)
            self._news.set()

    async def run(self) -> None:
        """Write what is kept, and end what was kept for too long. Runs until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._again_seconds):
                    await self._news.wait()
            self._news.clear()
            self._drop_old()
            try:
                await self._write()
            except RedisUnavailable:
                await asyncio.sleep(self._again_seconds)
                self._news.set()

    async def close(self) -> None:
        """End all calls that wait for people: this worker shuts down. Raises `RedisUnavailable`."""
        self._closed = True
        for call, held in [*self._held.items()]:
            if held.asked_in in self._said:
                self._say(held.asked_in, HeldState.LOST)
                del self._held[call]
                self._end(held)
        await self._write()
        if self._ending:
            await asyncio.wait([*self._ending], timeout=2 * END_SECONDS)

    def _drop_old(self) -> None:
        now = time.monotonic()
        for asked_in, said in [*self._said.items()]:
            if now - said.since > (LONGEST_SECONDS if said.state is HeldState.OPEN else OVER_SECONDS):
                held = self._held.pop(call_of_round(asked_in), None)
                if held is not None:
                    self._end(held)
                if said.state is HeldState.OPEN:
                    self._say(asked_in, HeldState.LOST)
                else:
                    self._unsay(asked_in)

    async def _write(self) -> None:
        rows = {name: msgspec.json.encode(HeldCall(self.pool, said.state)) for name, said in self._said.items()}
        if unsaid := [*self._unsaid]:
            await self._redis.hdel(self._keys.held, *unsaid)
            self._unsaid.difference_update(unsaid)
        if rows:
            await self._redis.hset(self._keys.held, mapping=rows)
            await self._redis.expire(self._keys.held, KEPT_SECONDS)


def _result_of(work: asyncio.Task[CallResult]) -> CallResult:
    return Ambiguous("the call was cancelled") if work.cancelled() else work.result()


def _state_of(work: asyncio.Task[CallResult]) -> HeldState:
    """The end of a call that nobody waits for: its outcome is kept, unless the crash table decides about it."""
    known = not work.cancelled() and work.exception() is None and isinstance(work.result(), Answered | Rejected)
    return HeldState.OVER if known else HeldState.LOST


async def _ended(held: _Held) -> None:
    """Answer `cancel`, and cancel the call if its server does not end it."""
    held.dialogue.close()
    if not held.work.done():
        await asyncio.wait([held.work], timeout=END_SECONDS)
    held.work.cancel()
    await asyncio.wait([held.work], timeout=END_SECONDS)
