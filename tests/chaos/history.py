"""What became of every call: as the engine's file, the ledger, the response channel and the effect log tell it."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from plugins_contract.keys import GROUP, Keys
from plugins_contract.messages import EVENT_TYPE, ExecutionClass
from tests.chaos.cluster import Cluster
from tests.chaos.notes import What
from tests.chaos.tools import REPEATABLE

KEYS = Keys()
PAGE = 500
_CALLS = (
    "SELECT c.correlation_id, c.name, c.arguments, c.outcome, c.created_at, c.answered_at,"  # noqa: S608
    " o.seq IS NOT NULL, c.turn_id"
    f" FROM tool_calls c LEFT JOIN outbox o ON o.event_type = '{EVENT_TYPE}' AND o.event_id = c.correlation_id"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """The ledger's entry of a call. Times are Unix milliseconds on the clock of Redis, 0 when it is not so far.

    `put_back` is how often RENEW has put back a fence that was not the ledger's.
    """

    state: str
    execution_class: str
    starts: int
    deadline: int
    started_at: int
    finished_at: int
    put_back: int = 0


@dataclass(frozen=True, slots=True)
class Call:
    """One committed call. `outcome` is what the engine has stored, `finished` the ends that stand in its channel.

    `attempts` is which of the call's starts the outcome comes from. `created_ms` and `answered_ms` are Unix time on the
    engine's clock.
    """

    correlation_id: str
    token: str
    execution_class: str
    outcome: str | None
    error: str | None
    entry: Entry | None
    finished: tuple[str, ...]
    effects: int
    has_outbox_row: bool
    attempts: int = 1
    work_ms: int = 0
    created_ms: int = 0
    answered_ms: int | None = None
    turn_id: str = ""

    @property
    def wait_ms(self) -> float:
        """How long its answer took beyond the tool's own work; infinite when there is none."""
        return math.inf if self.answered_ms is None else self.answered_ms - self.created_ms - self.work_ms


@dataclass(frozen=True, slots=True)
class History:
    """Everything that was committed, and effects of which no commit is known."""

    calls: Mapping[str, Call]
    strange_effects: tuple[str, ...]

    def count(self, outcome: str) -> int:
        return sum(call.outcome == outcome for call in self.calls.values())


def collect(cluster: Cluster, earlier: History | None = None, since_ms: float = 0) -> History:
    """The history so far, of the calls that were committed since that Unix time.

    A response channel lives for a day after its end: what `earlier` has seen of one that is gone still counts.
    """
    noted = cluster.noted()
    strange = set(noted.tokens(What.EFFECT))
    rows = cluster.store.rows(f"{_CALLS} WHERE c.created_at >= {round(since_ms)}")
    entries, channels = _in_redis(cluster, [row[0] for row in rows])
    calls: dict[str, Call] = {}
    for correlation_id, name, made_with, stored, created_at, answered_at, has_outbox_row, turn_id in rows:
        arguments = json.loads(made_with)
        token = arguments["token"]
        outcome: Any = json.loads(stored or "{}")
        finished = channels[correlation_id]
        if not finished and earlier and correlation_id in earlier.calls:
            finished = earlier.calls[correlation_id].finished
        calls[correlation_id] = Call(
            correlation_id, token, ExecutionClass.REPEATABLE if name.endswith(REPEATABLE) else ExecutionClass.ONCE,
            outcome.get("state"), outcome.get("error", {}).get("code"), entries[correlation_id], finished,
            len(noted.times(What.EFFECT, token)), bool(has_outbox_row), outcome.get("attempts", 0),
            arguments["work_ms"], created_at, answered_at, turn_id,
        )  # fmt: skip
        strange.discard(token)
    return History(calls, tuple(strange))


def backlog(cluster: Cluster) -> tuple[int, int]:
    """How many requests stand in the stream, and how many of them are in somebody's hands."""
    with cluster.client() as redis:
        pending: Any = redis.xpending(KEYS.requests, GROUP)
        return redis.xlen(KEYS.requests), pending["pending"]


def _in_redis(cluster: Cluster, ids: list[str]) -> tuple[dict[str, Entry | None], dict[str, tuple[str, ...]]]:
    entries: dict[str, Entry | None] = {}
    channels: dict[str, tuple[str, ...]] = {}
    with cluster.client() as redis:
        for at in range(0, len(ids), PAGE):
            page = ids[at : at + PAGE]
            pipeline = redis.pipeline(transaction=False)
            for correlation_id in page:
                pipeline.hgetall(KEYS.call(correlation_id))
                pipeline.xrange(KEYS.response(correlation_id))
            answers = iter(pipeline.execute())
            for correlation_id in page:
                entries[correlation_id] = _entry(next(answers))
                channels[correlation_id] = tuple(_ends(next(answers)))
    return entries, channels


def _entry(fields: dict[str, str]) -> Entry | None:
    if not fields:
        return None
    times = (int(fields.get(name, 0)) for name in ("starts", "deadline", "startedAt", "finishedAt"))
    put_back = fields.get("history", "").count(" put back ")
    return Entry(fields["state"], fields.get("class", ""), *times, put_back=put_back)


def _ends(channel: Iterable[Any]) -> Iterable[str]:
    for _, fields in channel:
        reply = json.loads(fields["reply"])
        if reply["kind"] == "finished":
            yield reply["outcome"]["state"]
