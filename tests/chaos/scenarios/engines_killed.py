"""An engine is killed at each step of a tool turn, and started again; or it stays dead, and another goes on.

Several engines share one PostgreSQL; on SQLite there is one, which can only be started again.

Clients read on over as many connections as it takes, from whichever engine is there. In the end each must have
received exactly what is stored, every turn must have its end, each tool must have run once, and the model must be shown
the whole history with the next question. In the end every engine must return the same for every session.
"""

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dialog_engine.http.services import LARGE_AT_ONCE
from tests.chaos.kill import TRANSITIONS, CrashingReplica, Kill, Recovery, Transition
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.tools import ASKING, SERVER, mcp_config
from tests.chaos.trial import in_lanes, quantile, trial
from tests.support.replicas import Replica
from tests.support.store import Kind

STORES: Sequence[Kind] = ("postgres", "sqlite")
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
            (_NAMED["the turn is parked"], Recovery.TAKEOVER),
        ],
        turns=2,
        lanes=2,
    ),
    Size.FULL: Form([(each, recovery) for each in TRANSITIONS for recovery in Recovery] * 3, turns=10, lanes=3),
}


def run(size: Size, folder: Path, *, store: Kind = "postgres") -> Report:
    form, shared = FORMS[size], store == "postgres"
    options: dict[str, Any] = {"config": mcp_config(SERVER, ASKING), "database": store, "engines": 0}
    with trial(folder, Work(), calls=0, workers=1, quick=True, **options) as under_fire, ExitStack() as clients:
        # On SQLite each engine has a file of its own, and that of this name is the trial's.
        names = [f"victim-{number}" for number in range(form.lanes)] if shared else ["engine"]
        victims = [clients.enter_context(closing(CrashingReplica(under_fire.cluster, name))) for name in names]
        survivor = clients.enter_context(closing(Replica(under_fire.cluster, "survivor"))) if shared else victims[0]
        engines = {survivor.port: survivor} | {victim.port: victim for victim in victims}
        for engine in engines.values():
            engine.wait_for_tools()
        jobs = form.jobs if shared else [(step, Recovery.RESTART) for step, _ in form.jobs]
        kills = _kill_all(jobs, form.turns, victims, survivor)
        history = under_fire.judge()
        under_fire.check_agreement(engines)
        for kill in kills:
            under_fire.expect(not kill.findings, "turn", "; ".join(kill.findings))
        for call in history.calls.values():
            under_fire.expect(call.effects == 1, "effects", f"a tool ran {call.effects} times", call.correlation_id)
        under_fire.figures |= dict(_figures(kills))
        return under_fire.report("engines_killed")


def _kill_all(wanted: Sequence[Job], turns: int, victims: Sequence[CrashingReplica], survivor: Replica) -> list[Kill]:
    kills: list[Kill] = []

    def do(victim: CrashingReplica, job: Job) -> None:
        # Decisions of one user are taken a few at a time: more turns than that never stand at the same step of them.
        kill = Kill(victim, survivor, *job, min(turns, LARGE_AT_ONCE) if job[0].asked else turns)
        kills.append(kill)
        kill.run()
        print(
            f"{kill.recovery}, {kill.transition.name}: {kill.findings or 'held'}; it is kill {len(kills)}", flush=True
        )

    in_lanes(victims, random.Random(0).sample(wanted, len(wanted)), do)
    return kills


def _figures(kills: Sequence[Kill]) -> Iterator[tuple[str, float | int | str]]:
    turns = [client for kill in kills for client in kill.clients]
    yield "kills", len(kills)
    yield "turns killed", len(turns)
    yield "resets received", sum(client.received.resets for client in turns)
    for recovery in sorted({kill.recovery for kill in kills}):
        of_this = [kill for kill in kills if kill.recovery is recovery]
        seconds = [turn.seconds for kill in of_this for turn in kill.clients if turn.seconds is not None]
        adoptions = [kill.adopted_after for kill in of_this if kill.adopted_after is not None]
        killed = Counter(kill.transition for kill in of_this for _ in kill.clients)
        yield f"{recovery}: end of the turn after the kill, p50 s", quantile(seconds, 0.5)
        yield f"{recovery}: end of the turn after the kill, max s", max(seconds, default=0.0)
        if adoptions:
            yield "its turns belong to another engine after, p50 s", quantile(adoptions, 0.5)
            yield "its turns belong to another engine after, max s", max(adoptions)
        yield f"{recovery}: transitions", len(killed)
        yield f"{recovery}: turns killed at each, at least", min(killed.values(), default=0)
