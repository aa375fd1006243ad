"""What KEDA's triggers read from a real Redis, and how many workers the autoscaler makes of recorded readings."""

import itertools
import json
import math
from typing import Any

import pytest
from redis.asyncio import Redis

from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger.group import read_backlog
from plugins_mcp.config import Settings as WorkerSettings
from tests.support.autoscaler import SYNC_SECONDS, Autoscaler, scaled_object, targets
from tests.support.processes import ROOT

SPEC = scaled_object()
FLOOR, CEILING = SPEC["minReplicaCount"], SPEC["maxReplicaCount"]
RECORDED: list[dict[str, int | None]] = json.loads(
    (ROOT / "tests" / "corpus" / "autoscaling" / "burst.json").read_text()
)
"""One reading per second of a burst of 80 calls of two seconds at one worker with four slots
(`python -m tests.support.recorded_backlog`)."""


def reading(second: int) -> dict[str, int]:
    """A recorded reading; KEDA reads a lag that Redis cannot state as 0. After the end nothing waits."""
    at = RECORDED[second] if second < len(RECORDED) else {"lag": 0, "pending": 0}
    return {kind: value or 0 for kind, value in at.items()}


def test_the_triggers_ask_for_the_stream_and_the_group_of_the_contract() -> None:
    asked = {(each["metadata"]["stream"], each["metadata"]["consumerGroup"]) for each in SPEC["triggers"]}

    assert asked == {(Keys().requests, GROUP)}
    assert targets(SPEC).keys() == {"lag", "pending"}


def test_a_worker_is_added_before_the_slots_of_all_are_taken() -> None:
    slots = WorkerSettings.model_fields["worker_concurrency"].default

    assert targets(SPEC)["pending"] < slots
    assert targets(SPEC)["lag"] <= slots


@pytest.mark.anyio
async def test_the_triggers_read_what_the_services_call_lag_and_pending(redis: Redis) -> None:
    stream = Keys().requests
    await redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
    for number in range(40):
        await redis.xadd(stream, {"event": str(number)})
    taken: Any = await redis.xreadgroup(GROUP, "a-worker", {stream: ">"}, count=10)
    [first, *_] = [entry for entry, _ in taken[0][1]]
    await redis.xack(stream, GROUP, first)
    await redis.xdel(stream, first)

    [group] = await redis.xinfo_groups(stream)
    pending = await redis.xpending(stream, GROUP)
    backlog = await read_backlog(redis, Keys())
    assert (group["lag"], pending["pending"]) == (backlog.lag, backlog.pending) == (30, 9)
    wanted = max(math.ceil(30 / targets(SPEC)["lag"]), math.ceil(9 / targets(SPEC)["pending"]), FLOOR)
    assert Autoscaler(SPEC).decide({"lag": group["lag"], "pending": pending["pending"]}) == wanted


def test_without_load_there_is_the_floor() -> None:
    autoscaler = Autoscaler(SPEC)

    assert {autoscaler.decide({"lag": 0, "pending": 0}) for _ in range(100)} == {FLOOR}
    assert FLOOR >= 1, "KEDA would stop the last worker"


def test_a_recorded_burst_adds_workers_within_a_minute_and_removes_them_slowly() -> None:
    assert max(value["lag"] or 0 for value in RECORDED) > 4 * targets(SPEC)["lag"], "the recording is no burst"
    autoscaler = Autoscaler(SPEC)
    numbers = [autoscaler.decide(reading(second)) for second in range(0, 1800, SYNC_SECONDS)]

    most = max(numbers)
    assert most >= 4
    assert numbers.index(most) * SYNC_SECONDS <= 60
    falls = [after - before for before, after in itertools.pairwise(numbers) if after < before]
    assert min(falls) >= -math.ceil(most / 4), "a fall of more than a quarter in a minute"
    rises_after_falls = [
        index
        for index, number in enumerate(numbers[1:], 1)
        if number > numbers[index - 1] and index > numbers.index(most)
    ]
    assert rises_after_falls == [], "it flaps"
    assert numbers[-1] == FLOOR


def test_a_lag_that_redis_cannot_state_for_a_moment_removes_no_worker() -> None:
    autoscaler = Autoscaler(SPEC)
    for _ in range(8):
        autoscaler.decide({"lag": 200, "pending": 60})
    before = autoscaler.workers
    for _ in range(4):
        autoscaler.decide({"lag": 0, "pending": 60})

    assert autoscaler.workers == before


def test_however_long_the_backlog_is_there_are_no_more_workers_than_the_ceiling() -> None:
    autoscaler = Autoscaler(SPEC)

    assert [autoscaler.decide({"lag": 100_000, "pending": 300}) for _ in range(20)][-1] == CEILING
