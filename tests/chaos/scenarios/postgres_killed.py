"""PostgreSQL is killed again and again under two engines; some outages are longer than a lease, in some an engine dies.

What an engine has accepted or sent must be there afterwards, what it has refused must not, and no engine may be taken
for dead because the store was away.
"""

import json
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event
from typing import Any

import httpx2

from dialog_engine.chat.ownership import OwnershipTimes
from plugins_contract.messages import new_id
from tests.chaos.followed import Followed, engines_at
from tests.chaos.load import NOT_KNOWN, Work
from tests.chaos.model import Order, calls_of
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, trial
from tests.support.replicas import TryAgainError
from tests.support.store import Kind
from tests.support.waiting import comes, wait_until_blocking

STORES: Sequence[Kind] = ("postgres",)
HEALED_SECONDS = 10.0
ADOPTED_SECONDS = 20.0
END_SECONDS = 150.0
READERS = 4
TRIED_AGAIN = 20
"""In so many sessions something more is asked in the end."""


@dataclass(frozen=True, slots=True)
class Outage:
    """PostgreSQL is away for so many seconds; an engine may be killed meanwhile."""

    seconds: float
    engine: bool = False


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: after each outage there is a pause."""

    outages: Sequence[Outage]
    pause_seconds: float
    work: Work


FORMS = {
    Size.SHORT: Form((Outage(0.3), Outage(4.0), Outage(1.0, engine=True)), 2.0,
        Work(calls_per_turn=5, open_calls=15, longest_ms=2_000)),
    Size.FULL: Form([Outage((0.2, 1.0, 2.5, 6.0, 15.0)[number % 5], engine=number % 6 == 5) for number in range(30)],
        8.0, Work(calls_per_turn=10, open_calls=40, longest_ms=6_000)),
}  # fmt: skip


@dataclass
class Readers:
    """Clients that ask at one engine and read at the other, each in its session, until they are to stop."""

    ports: Sequence[int]
    turns: list[Followed] = field(default_factory=list[Followed])
    refused: list[str] = field(default_factory=list[str])
    stop: Event = field(default_factory=Event)

    def read(self, session_id: str, number: int) -> None:
        with engines_at(self.ports) as clients:
            while not self.stop.wait(0.1):
                number += 1
                with suppress(httpx2.TransportError, TryAgainError):
                    self._turn(session_id, clients[number % 2], clients[1 - number % 2])

    def _turn(self, session_id: str, here: httpx2.Client, there: httpx2.Client) -> None:
        tag = new_id()
        turn = Followed(Order(tag, [calls_of(tag, 2, "both", 50, 1_500)], words=10, word_ms=100), session_id)
        answer = turn.begin(here)
        if turn.turn_id:
            self.turns.append(turn)
            turn.follow(there, END_SECONDS)
        elif answer.headers.get("retry-after") and NOT_KNOWN not in answer.text:
            self.refused.append(tag)


def run(size: Size, folder: Path, *, store: Kind = "postgres", source: str = "") -> Report:
    form = FORMS[size]
    options: dict[str, Any] = {"quick": size is Size.SHORT, "database": store, "engines": 2, "source": source}
    with (
        trial(folder, form.work, workers=2, store_goes_away=True, **options) as under_fire,
        ThreadPoolExecutor(READERS) as pool,
    ):
        cluster = under_fire.cluster
        readers = Readers([*cluster.running_engines])
        sessions = [httpx2.post(f"{cluster.url}/v1/sessions").json()["sessionId"] for _ in range(READERS)]
        reading = [pool.submit(readers.read, session_id, number) for number, session_id in enumerate(sessions)]
        try:
            outages = [_away(under_fire, form, outage) for outage in form.outages]
        finally:
            readers.stop.set()
        for each in reading:
            each.result()
        _judge_adoptions(under_fire, outages)
        under_fire.judge()
        under_fire.check_agreement()
        _judge_promises(under_fire, readers)
        _judge_sessions(under_fire)
        under_fire.figures |= {
            "times PostgreSQL was killed": len(form.outages),
            "outages longer than a lease": sum(outage.seconds > OwnershipTimes().lease for outage in form.outages),
            "questions are accepted again after, max s": max(each.healed_seconds for each in outages),
        }
        return under_fire.report("postgres_killed")


@dataclass(frozen=True, slots=True)
class Came:
    """What came of an outage. `orphans` are the running turns of the engine that was killed."""

    healed_seconds: float
    orphans: int = 0
    adopted_seconds: float = 0.0
    taken_before: int = 0
    """How many turns that engine had taken from the other one, which lived."""


def _away(under_fire: Trial, form: Form, outage: Outage) -> Came:
    cluster = under_fire.cluster
    assert cluster.postgres is not None
    [port] = cluster.others
    under_fire.wait_for_running_calls()
    # The first engine is never killed, so the youngest one is the other.
    [(killed_id,)] = cluster.store.rows("SELECT engine_id FROM engines ORDER BY started_at DESC LIMIT 1")
    taken = _taken_over(port)
    cluster.postgres.kill()
    if outage.engine:
        cluster.others.pop(port).kill()
    under_fire.load.wait(outage.seconds)
    cluster.postgres.start()
    back = time.monotonic()
    wait_until_blocking(
        lambda: all(map(_accepts, cluster.running_engines)), 3 * HEALED_SECONDS, what="accepted questions"
    )
    healed = time.monotonic() - back
    what = f"questions were accepted again only after {healed:.1f} s"
    under_fire.expect(healed <= HEALED_SECONDS, "healing", what)
    came = Came(healed)
    if outage.engine:
        theirs = f"turns WHERE status = 'running' AND owner = '{killed_id}'"
        orphans = cluster.store.count(theirs)
        comes(lambda: cluster.store.count(theirs) == 0, 2 * ADOPTED_SECONDS)
        came = Came(healed, orphans, time.monotonic() - back, taken)
        cluster.others[port] = cluster.run_engine(port, "engine")
    under_fire.load.wait(form.pause_seconds)
    return came


def _accepts(port: int) -> bool:
    with suppress(httpx2.TransportError):
        return httpx2.post(f"http://127.0.0.1:{port}/v1/sessions", timeout=10).is_success
    return False


def _taken_over(port: int) -> int:
    """How many turns this engine has taken from others in this life."""
    text = httpx2.get(f"http://127.0.0.1:{port}/metrics", timeout=10).text
    found = re.search(r'dialog_turns_moved_total\{how="takeover"\} ([0-9.]+)', text)
    return int(float(found.group(1))) if found else 0


def _judge_adoptions(under_fire: Trial, outages: Sequence[Came]) -> None:
    """What a dead engine left goes to the other one in time, and nothing of a living one does."""
    cluster = under_fire.cluster
    [last] = cluster.others
    orphans = sum(came.orphans for came in outages)
    from_the_living = sum(came.taken_before for came in outages) + _taken_over(last)
    from_the_living += abs(_taken_over(cluster.engine_port) - orphans)
    what = f"{from_the_living} turns were not adopted from dead engines only ({orphans} were left by them)"
    under_fire.expect(not from_the_living, "adoption", what)
    slowest = max((came.adopted_seconds for came in outages), default=0.0)
    what = f"it came only {slowest:.1f} s after the return"
    under_fire.expect(slowest <= ADOPTED_SECONDS, "adoption", what)
    under_fire.must_have_struck({"turns that ran on engines killed meanwhile": orphans})
    under_fire.figures |= {
        "turns taken from living engines": from_the_living,
        "turns of a dead engine belong to another one after, max s": slowest,
    }


def _judge_promises(under_fire: Trial, readers: Readers) -> None:
    """What was accepted or sent is stored, and what was refused is not."""
    store, load = under_fire.cluster.store, under_fire.load
    statuses: dict[str, str] = dict(store.rows("SELECT turn_id, status FROM turns"))
    asked = [json.loads(content) for (content,) in store.rows("SELECT content FROM messages WHERE role = 'user'")]
    begun = {order["tag"] for order in asked}
    accepted = [*load.accepted, *(turn.turn_id for turn in readers.turns)]
    refused = [*load.refused, *readers.refused]
    lost = [turn_id for turn_id in accepted if turn_id not in statuses]
    for turn_id in accepted:
        under_fire.expect(turn_id in statuses, "promise", "a question that was accepted is lost", turn_id)
        what = "a turn that was accepted has not ended"
        under_fire.expect(statuses.get(turn_id) != "running", "promise", what, turn_id)
    for tag in refused:
        under_fire.expect(tag not in begun, "promise", "a question that was refused was begun", tag)
    with closing(httpx2.Client(base_url=under_fire.cluster.url, timeout=60)) as http:
        for turn in readers.turns:
            # Every message and every end of a call that a client received was committed before.
            for what in turn.differences(http, whole=False):
                under_fire.expect(False, "promise", what, turn.turn_id)
            status = statuses.get(turn.turn_id, "")
            ended = turn.reason is not None and (turn.reason != "stop" or status == "done")
            what = f"a turn is {status}, its events end with {turn.received.done}"
            under_fire.expect(ended, "promise", what, turn.turn_id)
    under_fire.figures |= {
        "questions accepted": len(accepted),
        "of them lost": len(lost),
        "turns followed": len(readers.turns),
        "of them ended as failed": sum(turn.reason == "error" for turn in readers.turns),
    }
    under_fire.must_have_struck({"questions refused with Retry-After": len(refused)})
    under_fire.figures["resets received"] = sum(turn.received.resets for turn in readers.turns)


def _judge_sessions(under_fire: Trial) -> None:
    """Sessions go on, at either engine."""
    cluster = under_fire.cluster
    sessions = cluster.store.rows("SELECT session_id FROM turns ORDER BY created_at DESC")[:TRIED_AGAIN]
    ports = [*cluster.running_engines]
    for number, (session_id,) in enumerate(sessions):
        turn = Followed(Order(new_id()), session_id)
        with closing(httpx2.Client(base_url=f"http://127.0.0.1:{ports[number % 2]}", timeout=60)) as http:
            answer = turn.begin(http)
            if turn.turn_id:
                turn.follow(http, END_SECONDS)
        what = f"one cannot go on: {answer.text} {turn.received.done}"
        under_fire.expect(turn.reason == "stop", "sessions", what, session_id)
    under_fire.figures["sessions in which more was asked"] = len(sessions)
