"""Connections to Redis fall silent: nothing is refused, nothing breaks, and nothing comes any more.

Of the engine, of the workers, or of both, in both directions or in one; and of one worker while another is well. While
it lasts users chat, stop a turn and wait for tools. What was held arrives late, when no connection reads it any more.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from plugins_mcp.leases import LeaseTimes
from tests.chaos.behind_proxies import Proxies, behind_proxies
from tests.chaos.faults import BLACK_HOLE, NO_FAULTS, Faults
from tests.chaos.parts import Asked, Part, merged, timed
from tests.chaos.proxy import Proxy
from tests.chaos.report import Report, Size
from tests.support.quick_worker import QUICK
from tests.support.stack import Stack
from tests.support.waiting import wait_until_blocking

NOTICED_SECONDS = 8.0
STOPPED_SECONDS = 4.0
TEXT_SECONDS = 1.8
HEALED_SECONDS = 10.0
BRIEF_SECONDS = 3.0
"""The time limit of the tools of one server."""
BRIEF_ANSWER_SECONDS = BRIEF_SECONDS + 6
"""The engine gives the worker and the ledger two seconds each after the limit; the rest is the turn around it."""

REQUESTS, REPLIES = Faults(hold_requests=True), Faults(hold_replies=True)


@dataclass(frozen=True)
class Case:
    name: str
    engine: Faults = NO_FAULTS
    workers: Faults = NO_FAULTS
    seconds: float = 20


CASES = {
    Size.SHORT: (Case("both", BLACK_HOLE, BLACK_HOLE, 8),),
    Size.FULL: (
        Case("both", BLACK_HOLE, BLACK_HOLE),
        Case("the engine", BLACK_HOLE),
        Case("the workers", workers=BLACK_HOLE),
        Case("the engine's requests", REQUESTS, seconds=12),
        Case("the engine's replies", REPLIES, seconds=12),
        Case("the workers' requests", workers=REQUESTS, seconds=12),
        Case("the workers' replies", workers=REPLIES, seconds=12),
    ),
}


def run(size: Size, folder: Path) -> Report:
    demo = {"type": "http", "url": "${DEMO_MCP_URL}"}
    brief = {"trust": True, "timeoutMs": int(BRIEF_SECONDS * 1000)}
    config = {"mcpServers": {"demo": demo | {"callstream": {"trust": True}}, "brief": demo | {"callstream": brief}}}
    quick = size is Size.SHORT
    stack = Stack(folder, quick=quick, config=config)
    with closing(stack), behind_proxies(stack) as proxies, ThreadPoolExecutor(20) as pool:
        stack.start()
        parts: list[Part] = [_Silence(stack, pool, proxies, case) for case in CASES[size]]
        parts.append(_OneOfTwo("one worker of two", stack, pool, QUICK if quick else LeaseTimes()))
        for part in parts:
            part.run()
    return merged("black_hole", parts)


class _Silence(Part):
    """Everybody of a kind hears nothing."""

    def __init__(self, stack: Stack, pool: ThreadPoolExecutor, proxies: Proxies, case: Case) -> None:
        super().__init__(case.name, stack, pool)
        self._case = case
        self._proxies = proxies

    def run(self) -> None:
        known = self.ask("Hello").end().events[0].data["sessionId"]
        before, stopped = self.count("before", 2), self.count("stopped", 60)
        for asked in (before, stopped):
            asked.wait_for_effect()
        self._proxies.engine.set(self._case.engine)
        self._proxies.workers.set(self._case.workers)
        ends_at = time.monotonic() + self._case.seconds
        again = self.ask("Hello again", known)
        noticed = self._notices()
        chat, brief = self.ask("Hello, who are you?"), self.ask('call brief__echo {"text": "hello"}')
        meanwhile = self.count("meanwhile")
        self.within("a stop takes", stopped.stop(), STOPPED_SECONDS)
        for who, notice in noticed.items():
            self.within(f"{who} notices it after", notice.result(), NOTICED_SECONDS)
        self.within("a new turn without tools takes", chat.seconds, TEXT_SECONDS)
        self.within("text of a new turn comes after", chat.first_text, TEXT_SECONDS)
        again.end()
        self.within("text of a session's next turn comes after", again.first_text, TEXT_SECONDS)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        self._proxies.engine.clear()
        self._proxies.workers.clear()
        self.check_healed(HEALED_SECONDS)
        self.within("a call with a short limit is answered after", brief.seconds, BRIEF_ANSWER_SECONDS)
        self.figures["a call with a short limit is"] = brief.status
        self.check_call("before", before)
        self.check_call("meanwhile", meanwhile)

    def _notices(self) -> "dict[str, Future[float]]":
        """When each that is cut off says so."""
        conditions: dict[str, Callable[[], bool]] = {}
        if self._case.engine != NO_FAULTS:
            conditions["the engine"] = lambda: self.redis_state() != "ok"
        if self._case.workers != NO_FAULTS:
            conditions["a worker"] = lambda: self.ready_workers() < len(self.stack.workers)
        waits = {who: partial(wait_until_blocking, condition) for who, condition in conditions.items()}
        return {who: self._pool.submit(timed, wait) for who, wait in waits.items()}


class _OneOfTwo(Part):
    """One worker hears nothing, the other is well: it takes over, and nothing runs in two places."""

    def __init__(self, name: str, stack: Stack, pool: ThreadPoolExecutor, times: LeaseTimes) -> None:
        super().__init__(name, stack, pool)
        self._times = times

    def run(self) -> None:
        stack, times = self.stack, self._times
        for port in list(stack.workers):
            stack.workers.pop(port).kill()
        with Proxy(stack.redis.port) as own:
            env, stack.worker_env = stack.worker_env, {**stack.worker_env, "REDIS_URL": own.url}
            silent = stack.start_worker()
            once = self.count("once", 5 * times.lease)
            again = self.call("slow_job", "again", seconds=60, steps=60)
            for asked in (once, again):
                asked.wait_for_effect()
            stack.worker_env = env
            stack.start_worker()
            own.set(BLACK_HOLE)
            began, began_at = time.monotonic(), datetime.now(UTC)
            self._check_once(once, began)
            self._check_again(again, began_at)
            own.clear()
            back = timed(lambda: wait_until_blocking(lambda: self.ready_workers() == 2, what="the worker"))
            self.within("the silent worker is ready again after", back, HEALED_SECONDS)
            stack.workers.pop(silent).kill()

    def _check_once(self, once: Asked, began: float) -> None:
        once.end()
        limit = self._times.lease + 2 * self._times.sweep + 1
        self.within("the call that may not run twice is answered after", time.monotonic() - began, limit)
        self.expect(once.status == "unknown", f"the call that may not run twice is {once.status}")
        self.expect(once.effects == 1, f"the call that may not run twice has {once.effects} effects")

    def _check_again(self, again: Asked, began_at: datetime) -> None:
        times = self._times
        wait_until_blocking(lambda: again.effects >= 3, 60, what="the second run")
        again.stop()
        steps = self.stack.effects(again.token)
        states = [step["status"] for step in steps]
        self.expect(
            states == ["started", "cancelled", "started", "cancelled"], f"the call that may run again: {states}"
        )
        _, given_up, taken_over, *_ = (
            (datetime.fromisoformat(step["time"]) - began_at).total_seconds() for step in steps
        )
        self.within("a call that may run again is given up after", given_up, times.give_up + 2 * times.heartbeat + 0.5)
        self.within("and taken over after", taken_over, times.lease + 2 * times.sweep + 1)
