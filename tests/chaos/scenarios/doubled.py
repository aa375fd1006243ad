"""Requests and notifications come twice or not at all, and so does what an engine was doing when it was killed.

A request that stands in the stream a second time is one call. A notification that comes twice is one answer, and
one that does not come at all delays it. An engine that dies between publishing a request and marking it publishes it
again.
"""

import random
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plugins_contract.keys import Keys
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.trial import Trial, engines_on, trial
from tests.support.store import Kind
from tests.support.waiting import comes

KEYS = Keys()
GAP_SECONDS = 0.25
UNHEARD_SECONDS = 2.0
"""Longer than a call runs."""
SETTLE_SECONDS = 30.0
LATE_MS: dict[Kind, float] = {"sqlite": 15_000.0, "postgres": 25_000.0}
"""A lost notification costs 5 seconds at most, and an engine that was killed has to start first; on PostgreSQL the
lease of its earlier life, 10 seconds, has to run out."""
STORES: Sequence[Kind] = ("postgres", "sqlite")
WORK = Work(calls_per_turn=10, open_calls=40, longest_ms=600)


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: engine kills, and rounds of other trouble between them."""

    kills: int
    rounds: int


FORMS = {Size.SHORT: Form(1, 12), Size.FULL: Form(5, 80)}


@dataclass
class Copies:
    """What was put into Redis a second time, or taken away."""

    requests: set[str] = field(default_factory=set[str])
    notifications: int = 0
    lost_notifications: int = 0


def run(size: Size, folder: Path, *, store: Kind = "postgres", source: str = "") -> Report:
    form = FORMS[size]
    copies = Copies()
    with trial(folder, WORK, workers=2, quick=size is Size.SHORT, source=source, **engines_on(store)) as under_fire:
        for number in range(form.kills + 1):
            _make_trouble(under_fire, form.rounds, copies)
            if number < form.kills:
                under_fire.cluster.restart_engine(signal.SIGKILL)
        history = under_fire.judge(SETTLE_SECONDS)
        under_fire.check_agreement()
        for call in history.calls.values():
            # No worker was struck, so that there is no reason to begin anything again, whatever its class.
            once = (call.entry is None or call.entry.starts <= 1) and call.effects <= 1
            what = "a call was begun twice though its worker was well"
            under_fire.expect(once, "I2", what, call.correlation_id)
            what = "an answer without its notification came too late"
            under_fire.expect(call.wait_ms <= LATE_MS[store], "latency", what, call.correlation_id)
        longest = max((call.wait_ms for call in history.calls.values()), default=0.0)
        under_fire.figures |= {"engine kills": form.kills, "longest wait ms": longest}
        under_fire.must_have_struck(
            {
                "requests doubled": len(copies.requests),
                "notifications doubled": copies.notifications,
                "notifications of an end that were lost": copies.lost_notifications,
            }
        )
        return under_fire.report("doubled")


def _make_trouble(under_fire: Trial, rounds: int, copies: Copies) -> None:
    for number in range(rounds):
        under_fire.load.wait(GAP_SECONDS)
        with under_fire.cluster.client() as redis:
            entries: list[Any] = redis.xrange(KEYS.requests, count=50)
            for _, fields in random.sample(entries, min(3, len(entries))):
                redis.xadd(KEYS.requests, fields)
                copies.requests.add(fields["correlationId"])
            mailboxes = list(redis.scan_iter(KEYS.mailbox("*"), count=1000))
            if number % 4 == 3:
                copies.lost_notifications += _silence(under_fire, redis, mailboxes)
                continue
            for mailbox in mailboxes:
                for _, fields in redis.xrevrange(mailbox, count=5):
                    redis.xadd(mailbox, fields)
                    copies.notifications += 1


def _silence(under_fire: Trial, redis: Any, mailboxes: Sequence[str]) -> int:
    """Delete all notifications, some unread because the engines are stopped; how many of these were of an end."""
    engines = under_fire.cluster.running_engines.values()
    if not under_fire.observer.running():
        return 0  # what has ended was not heard of before: the engine is left to find that out
    for engine in engines:
        engine.freeze()
    try:
        heard = {mailbox: redis.xinfo_stream(mailbox)["last-generated-id"] for mailbox in mailboxes}

        def unheard() -> int:
            # A read that was waiting is answered with the first of them.
            unread = [entry for mailbox, last in heard.items() for entry in redis.xrange(mailbox, f"({last}")[1:]]
            return sum('"finished"' in fields["reply"] for _, fields in unread)

        comes(unheard, UNHEARD_SECONDS)
        lost = unheard()
        for mailbox in mailboxes:
            redis.xtrim(mailbox, maxlen=0, approximate=False)
        return lost
    finally:
        for engine in engines:
            engine.send(signal.SIGCONT)
