"""Questions of servers that wait for the answer in the middle of a call, which their worker keeps open.

Such a question is over when its worker or its session ends, or when the server does not wait any more. Nothing of a
parked turn is in any engine, so each engine reads once a second what the workers say, and settles what is over. It also
ends open calls whose question nobody answers any more: after a Stop, an expiry or a deletion.
"""

import asyncio
import logging
import random
from collections.abc import Collection, Mapping
from typing import Protocol

from callstream_runtime.outage_log import OutageLog
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.ports import Control
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.sideband import run_shielded
from dialog_engine.tool_calls.approvals.pending import Resume
from dialog_engine.tool_calls.questions.pending import PendingQuestions
from plugins_contract.held import HeldCall, HeldState
from plugins_contract.pools import SILENT_MS
from plugins_contract.questions import call_of_round

log = logging.getLogger(__name__)

GONE_SECONDS = SILENT_MS / 1000
"""How long a worker must be silent before its calls count as lost."""
AT_ONCE = 100
"""How many open calls one look compares with the store. The next look goes on behind them."""


class HeldCalls(Protocol):
    """The calls that workers keep open. Every method raises `RedisUnavailable`."""

    async def read(self) -> Mapping[str, HeldCall]:
        """All of them, by the id of the round that asked."""
        ...

    async def silent(self, pools: Collection[str]) -> Mapping[str, float]:
        """For how many seconds the workers with these pools of their own have not announced themselves.

        At most for as long as Redis has been steady: after an outage every worker has the whole time again.
        """
        ...

    async def end(self, request_id: str) -> None:
        """Have its worker cancel a call that waits for nobody any more."""
        ...

    async def forget(self, request_id: str) -> None:
        """Remove what is said of a round."""
        ...


class HeldQuestions:
    """The open calls, as one engine looks after them."""

    def __init__(
        self,
        pending: PendingQuestions,
        calls: HeldCalls,
        turns: RunningTurns,
        control: Control,
        resume: Resume,
        *,
        look_seconds: float = 1.0,
        gone_seconds: float = GONE_SECONDS,
    ) -> None:
        """`resume` goes on with a turn that was parked."""
        self._pending = pending
        self._calls = calls
        self._turns = turns
        self._control = control
        self._resume = resume
        self._look_seconds = look_seconds
        self._gone_seconds = gone_seconds
        self._checked = ""
        self._outages = OutageLog(log, "looking for open calls")

    async def run(self) -> None:
        """Runs until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds * random.uniform(0.75, 1.0))
            try:
                await self._look()
            except (RedisUnavailable, StorageUnavailableError) as error:
                self._outages.failed(error)
            else:
                self._outages.worked()

    async def _look(self) -> None:
        rows = await self._calls.read()
        silent = await self._calls.silent({row.pool for row in rows.values()})
        lost = {pool for pool, seconds in silent.items() if seconds >= self._gone_seconds}
        states = {name: HeldState.LOST if row.pool in lost else row.state for name, row in rows.items()}
        over = [name for name, state in states.items() if state is not HeldState.OPEN]
        still = sorted(name for name, state in states.items() if state is HeldState.OPEN)
        page = [name for name in still if name > self._checked][:AT_ONCE]
        self._checked = page[-1] if len(page) == AT_ONCE else ""
        for name in (*over, *page):
            await self._settle(name, states[name])

    async def _settle(self, request_id: str, state: HeldState) -> None:
        number = request_id.partition(":")[2] or "1"
        waits, found = await self._pending.store.waiting(call_of_round(request_id), int(number))
        if not waits:
            await self._calls.end(request_id)
        elif found is None or state is HeldState.OPEN:
            pass  # the question is not committed yet, or waits for its answer
        elif found.asked.is_open:
            with self._turns.committing(found.turn_id):
                await run_shielded(self._pending.over(found, state, self._resume))
            self._control.decision()
        else:
            await self._calls.forget(request_id)
