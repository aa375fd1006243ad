"""Engines stand still (SIGSTOP) for three leases while their turns run, and go on as if nothing had been.

Their turns belong to others by then. An engine that wakes up writes nothing of them: not into the store, and not into
the log that clients read. It is kept from noticing by itself what has happened, so that the fences alone must hold.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from signal import SIGCONT
from typing import Any

import httpx2

from plugins_contract.messages import new_id
from tests.chaos.cluster import Cluster
from tests.chaos.followed import Followed, engines_at
from tests.chaos.invariants import Finding
from tests.chaos.load import Work
from tests.chaos.model import ASIDE, Order, calls_of
from tests.chaos.notes import Note, What, notes_in
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, in_lanes, quantile, trial
from tests.support.processes import Process
from tests.support.stack import events_of
from tests.support.store import Kind, quoted
from tests.support.waiting import comes, wait_until_blocking

STORES: Sequence[Kind] = ("postgres",)
LATE_SECONDS = 10.0
"""Within a lease and so many seconds its turns belong to others."""
END_SECONDS = 90.0
FENCED_SECONDS = 60.0
LOOKED_AT_ONCE = 8
TAKEN = "a write of a fenced engine was taken"


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: so many stops of so many seconds, of `lanes` engines at the same time.

    Of the turns that run then, every second one goes on to talk for longer than its engine stands still; the others
    have a second round of calls.
    """

    stops: int
    lanes: int
    turns: int
    lease: float
    seconds: float
    word_ms: int

    @property
    def words(self) -> int:
        """Of the turns that talk for long."""
        return round(1.3 * (self.seconds + 2) * 1000 / self.word_ms)


FORMS = {
    Size.SHORT: Form(2, 2, 4, lease=2.5, seconds=7.5, word_ms=250),
    Size.FULL: Form(100, 10, 6, lease=10.0, seconds=30.0, word_ms=500),
}


@dataclass
class Sleeper(Followed):
    """A turn whose engine stands still."""

    pid: int = 0
    """The engine that stood still with it."""
    epoch: int = 0
    """Its epoch there, if it ran; else 0."""
    woken_at: float = 0.0


@dataclass
class Lane:
    cluster: Cluster
    form: Form
    port: int
    adopted_after: list[float] = field(default_factory=list[float])
    sleepers: list[Sleeper] = field(default_factory=list[Sleeper])

    @property
    def engine(self) -> Process:
        return self.cluster.others[self.port]

    def stop(self, dice: random.Random) -> None:
        """Stop it with turns that run, wait until they are adopted, and let it go on."""
        form, url = self.form, self.cluster.url
        sleepers = [Sleeper(_order(form, dice, talks=bool(n % 2)), pid=self.engine.pid) for n in range(form.turns)]
        with httpx2.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=60) as http:
            for each in sleepers:
                each.begin(http)
        with (
            ThreadPoolExecutor(form.turns) as pool,
            httpx2.Client(base_url=url, timeout=60, limits=httpx2.Limits(max_connections=2 * form.turns)) as http,
        ):
            # They are followed where they do not run.
            ends = [pool.submit(each.follow, http, END_SECONDS) for each in sleepers]
            time.sleep(dice.uniform(0.2, 2.0))  # anywhere in the turns
            self.engine.freeze()
            stopped_at = time.monotonic()
            try:
                self._see_adopted(sleepers, stopped_at)
                time.sleep(max(0.0, stopped_at + form.seconds - time.monotonic()))
            finally:
                for each in sleepers:
                    each.woken_at = time.monotonic()
                self.engine.send(SIGCONT)
            for end in ends:
                end.result()
        self.sleepers += sleepers

    def _see_adopted(self, sleepers: Sequence[Sleeper], stopped_at: float) -> None:
        """Wait until none of them belongs to the engine that stands still."""
        theirs = f"turns WHERE status = 'running' AND turn_id IN ({quoted(each.turn_id for each in sleepers)})"
        running = self.cluster.store.rows(f"SELECT turn_id, epoch, owner FROM {theirs}")  # noqa: S608
        for turn_id, epoch, _ in running:
            next(each for each in sleepers if each.turn_id == turn_id).epoch = epoch
        left = f"{theirs} AND owner IN ({quoted({owner for _, _, owner in running})})"
        wait_until_blocking(lambda: self.cluster.store.count(left) == 0, 3 * self.form.seconds, what="the adoption")
        if running:
            self.adopted_after.append(time.monotonic() - stopped_at)


def run(size: Size, folder: Path, *, store: Kind = "postgres", source: str = "") -> Report:
    form, notes = FORMS[size], folder / "notes"
    program = (sys.executable, "-m", "tests.chaos.engine", "--lease", str(form.lease), "--notes", notes)
    options: dict[str, Any] = {"database": store, "engine_env": {"DATABASE_POOL_SIZE": "4"}, "source": source}
    with trial(folder, Work(), calls=0, workers=2, program=program, **options) as under_fire:
        # A turn that moves from one stopped engine to the next would end with `TURN_CRASHES`.
        ports = under_fire.cluster.start_others(form.lanes, (*program, "--adopt-nothing"))
        for port in ports:
            under_fire.cluster.wait_for_tools_at(port)
        lanes = [Lane(under_fire.cluster, form, port) for port in ports]
        _stop_all(under_fire, form, lanes)
        sleepers = [each for lane in lanes for each in lane.sleepers]
        under_fire.findings += _refused(form, sleepers, notes)
        history = under_fire.judge()
        under_fire.check_agreement()
        _check_received(under_fire, sleepers)
        adoptions = [seconds for lane in lanes for seconds in lane.adopted_after]
        latest = max(adoptions, default=0.0)
        under_fire.expect(latest <= form.lease + LATE_SECONDS, "adoption", f"it came only after {latest:.1f} s")
        written = Counter(note.what for note in notes_in(notes))
        passed = sum(finding.what == TAKEN for finding in under_fire.findings)
        under_fire.figures |= {
            "stops": form.stops,
            "seconds of each stop": form.seconds,
            "seconds of the lease": form.lease,
            "turns followed": len(sleepers),
            "their owner is another one after, p50 s": quantile(adoptions, 0.5),
            "their owner is another one after, max s": latest,
            "turns of which a write after that was taken": passed,
            "messages twice": sum(finding.rule == "twice" for finding in under_fire.findings),
            "calls that ended": sum(call.outcome is not None for call in history.calls.values()),
        }
        under_fire.must_have_struck(
            {
                "turns that ran and were adopted": sum(each.epoch > 0 for each in sleepers),
                "writes that were refused": written[What.FENCED],
                "entries that a turn log refused": written[What.LOG_REFUSED],
            }
        )
        return under_fire.report("engines_stopped")


def _order(form: Form, dice: random.Random, *, talks: bool) -> Order:
    longest_ms = round(dice.uniform(100, 500 * form.seconds))
    tag, words, rounds = new_id(), *((form.words, 1) if talks else (5, 2))
    calls = [calls_of(f"{tag}.{number}", 2, "both", 50, longest_ms) for number in range(rounds)]
    return Order(tag, calls, words=words, word_ms=form.word_ms)


def _stop_all(under_fire: Trial, form: Form, lanes: Sequence[Lane]) -> None:
    def do(lane: Lane, number: int) -> None:
        try:
            lane.stop(random.Random(number))
        except Exception as error:  # noqa: BLE001 -- whatever it is became of this stop: the others go on
            what = f"a stop could not be seen through: {type(error).__name__} {error}"
            under_fire.expect(False, "stop", what, str(number))

    in_lanes(lanes, range(form.stops), do)


def _refused(form: Form, sleepers: Sequence[Sleeper], notes: Path) -> list[Finding]:
    """What an engine that woke up wrote of a turn of which it had been the owner: each write must be refused."""
    asleep = {(each.pid, each.turn_id, each.epoch): each for each in sleepers if each.epoch}

    def theirs() -> dict[tuple[int, str, int], list[Note]]:
        found: dict[tuple[int, str, int], list[Note]] = {key: [] for key in asleep}
        for note in notes_in(notes):
            key = (note.pid, note.token, note.epoch)
            if key in found and note.at >= asleep[key].woken_at:
                found[key].append(note)
        return found

    # Each of them comes to a write by itself, at the latest with its end.
    comes(lambda: all(theirs().values()), FENCED_SECONDS + form.seconds)
    findings: list[Finding] = []
    for (_, turn_id, _), written in theirs().items():
        if not written:
            findings.append(Finding("fence", "an engine that woke up never wrote, so that no fence was tried", turn_id))
        if any(note.what is What.TAKEN for note in written):
            findings.append(Finding("fence", TAKEN, turn_id))
    return findings


def _check_received(under_fire: Trial, sleepers: Sequence[Sleeper]) -> None:
    """Clients, here or elsewhere, must have received exactly what happened, once."""
    ports = [*under_fire.cluster.running_engines][:2]
    with engines_at(ports) as engines, ThreadPoolExecutor(LOOKED_AT_ONCE) as pool:

        def look(each: Sleeper) -> None:
            for what in each.differences(engines[0]):
                under_fire.expect(False, "received", what, each.turn_id)
            said = [*each.received.messages.values()]
            whole = [*[ASIDE] * len(each.order.rounds), each.order.text]
            under_fire.expect(said == whole, "twice", f"its messages are {said}", each.turn_id)
            under_fire.expect(each.reason == "stop", "end", f"it ended with {each.received.done}", each.turn_id)
            for http in engines:
                with http.stream("GET", f"/v1/turns/{each.turn_id}/events") as response:
                    ends = sum(event.name == "done" for event in events_of(response.iter_lines()))
                under_fire.expect(ends == 1, "ends", f"its log tells of {ends} ends", each.turn_id)

        list(pool.map(look, sleepers))
