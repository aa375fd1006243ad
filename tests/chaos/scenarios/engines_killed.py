"""An engine is killed at each step of a tool turn, and started again; or it stays dead, and another goes on.

Several engines share one PostgreSQL; on SQLite each has a file of its own, and can only be started again.

Clients read on over as many connections as it takes, from whichever engine is there. In the end each must have
received exactly what is stored, every turn must have its end, and each tool must have run once. In the end every
engine must return the same for every session.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue

from tests.chaos.agreement import disagreement
from tests.chaos.kill import CrashingReplica, Kill, Recovery
from tests.chaos.report import Report, Size
from tests.chaos.transitions import TRANSITIONS, Transition
from tests.chaos.trial import quantile
from tests.support.replicas import Replica
from tests.support.stack import Stack
from tests.support.store import Kind
from tests.support.waiting import wait_until_blocking

STORES: Sequence[Kind] = ("postgres", "sqlite")
SAME_SECONDS = 30.0
LOOKED_AT_ONCE = 8
Job = tuple[Transition, Recovery]


@dataclass(frozen=True, slots=True)
class Form:
    """`lanes` engines are killed at the same time, each with so many turns that stand at the same step."""

    jobs: Sequence[Job]
    turns: int
    lanes: int


_NAMED = {each.name: each for each in TRANSITIONS}
FORMS = {
    Size.SHORT: Form(
        [
            (_NAMED["the round is committed, the relay does not have it"], Recovery.TAKEOVER),
            (_NAMED["the end is committed, not sent"], Recovery.TAKEOVER),
            (_NAMED["the approval is committed, not sent"], Recovery.RESTART),
        ],
        turns=2,
        lanes=2,
    ),
    Size.FULL: Form([(each, recovery) for each in TRANSITIONS for recovery in Recovery] * 3, turns=10, lanes=3),
}


def run(size: Size, folder: Path, *, store: Kind = "postgres") -> Report:
    """Kill engines."""
    form = FORMS[size]
    stack = Stack(folder, quick=True, token_delay_ms=5, database=store)
    try:
        stack.start()
        with ExitStack() as clients:
            survivor = clients.enter_context(closing(Replica(stack, "survivor")))
            victims = [clients.enter_context(closing(CrashingReplica(stack, f"victim-{n}"))) for n in range(form.lanes)]
            for engine in (survivor, *victims):
                engine.wait_for_tools()
            shared = store == "postgres"
            jobs = [(step, recovery if shared else Recovery.RESTART) for step, recovery in form.jobs]
            kills = _kill_all(jobs, form.turns, victims, survivor)
            findings = [finding for kill in kills for finding in kill.findings]
            findings += _in_the_end(kills, [survivor, *victims] if shared else [])
    finally:
        stack.close()
    return Report("engines_killed", _figures(kills), tuple(findings))


def _kill_all(wanted: Sequence[Job], turns: int, victims: Sequence[CrashingReplica], survivor: Replica) -> list[Kill]:
    jobs: Queue[Job] = Queue()
    for job in random.Random(0).sample(wanted, len(wanted)):
        jobs.put(job)

    def lane(victim: CrashingReplica) -> list[Kill]:
        kills: list[Kill] = []
        while True:
            try:
                transition, recovery = jobs.get_nowait()
            except Empty:
                return kills
            kill = Kill(victim, survivor, transition, recovery, turns)
            kills.append(kill)
            kill.run()
            print(
                f"{recovery}, {transition.name}: {kill.findings or 'held'}; {jobs.qsize()} kills are left", flush=True
            )

    with ThreadPoolExecutor(len(victims)) as pool:
        return [kill for kills in pool.map(lane, victims) for kill in kills]


def _in_the_end(kills: Sequence[Kill], engines: Sequence[Replica]) -> Iterator[str]:
    """All engines are there. What they tell differently of a session, what has no end even now, what ran twice.

    `engines` are those that know every session; without them a session is known to its own engine only. It is over
    SAME_SECONDS after every session was looked at, whatever is missing then.
    """
    everyone = [(kill, client) for kill in kills for client in kill.clients]
    unlike = [(kill, client, "") for kill, client in everyone]

    def look() -> bool:
        """Look again at the sessions that were not as they should be. Whether all are."""
        known_to = [engines or [kill.victim] for kill, _, _ in unlike]
        found = list(pool.map(disagreement, known_to, [client.session_id for _, client, _ in unlike]))
        unlike[:] = [
            (kill, client, problem) for (kill, client, _), problem in zip(unlike, found, strict=True) if problem
        ]
        return not unlike

    with ThreadPoolExecutor(LOOKED_AT_ONCE) as pool, suppress(TimeoutError):
        if not look():
            wait_until_blocking(look, SAME_SECONDS)
    for kill, _, problem in unlike:
        yield f"{kill.recovery}, {kill.transition.name}: in the end the engines return {problem}"
    for kill, client in everyone:
        if (runs := len(kill.victim.stack.effects(client.token))) != 1:
            yield f"{kill.recovery}, {kill.transition.name}: turn {client.turn_id}: the tool ran {runs} times"


def _figures(kills: Sequence[Kill]) -> dict[str, float | int | str]:
    turns = [client for kill in kills for client in kill.clients]
    figures: dict[str, float | int | str] = {
        "kills": len(kills),
        "turns killed": len(turns),
        "resets received": sum(client.received.resets for client in turns),
    }
    for recovery in sorted({kill.recovery for kill in kills}):
        seconds = [
            v.seconds for kill in kills if kill.recovery is recovery for v in kill.clients if v.seconds is not None
        ]
        figures[f"{recovery}: end of the turn after the kill, p50 s"] = quantile(seconds, 0.5)
        figures[f"{recovery}: end of the turn after the kill, max s"] = max(seconds, default=0.0)
        killed = Counter(kill.transition for kill in kills if kill.recovery is recovery for _ in kill.clients)
        adoptions = [
            kill.adopted_after for kill in kills if kill.recovery is recovery and kill.adopted_after is not None
        ]
        if adoptions:
            figures["its turns belong to another engine after, p50 s"] = quantile(adoptions, 0.5)
            figures["its turns belong to another engine after, max s"] = max(adoptions)
        figures[f"{recovery}: transitions"] = len(killed)
        figures[f"{recovery}: turns killed at each, at least"] = min(killed.values(), default=0)
    return figures
