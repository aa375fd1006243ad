"""What KEDA's triggers read from a real Redis, and how many workers the autoscaler makes of recorded readings."""

import itertools
import json
import math
from typing import Any

from redis.asyncio import Redis

from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger.group import read_backlog
from plugins_mcp.config import Settings as WorkerSettings
from tests.marks import promise
from tests.support.autoscaler import SYNC_SECONDS, Autoscaler, scaled_object, targets
from tests.support.processes import ROOT

SPEC = scaled_object()
FLOOR, CEILING = SPEC["minReplicaCount"], SPEC["maxReplicaCount"]
RECORDED: list[dict[str, int]] = json.loads((ROOT / "tests" / "corpus" / "autoscaling" / "burst.json").read_text())
"""XLEN and the count of XPENDING, once a second, in a burst of 190 calls of two seconds at one worker with eight slots
(MCP_REQUEST_TIMEOUT_MS 60000, no window per subject)."""


def reading(second: int) -> dict[str, int]:
    """A recorded reading. After the end nothing waits."""
    return RECORDED[second] if second < len(RECORDED) else {"length": 0, "pending": 0}


def test_the_triggers_ask_for_the_stream_and_the_group_of_the_contract() -> None:
    length, pending = (each["metadata"] for each in SPEC["triggers"])

    assert (length["stream"], pending["stream"]) == (Keys().requests, Keys().requests)
    assert "consumerGroup" not in length, "with a group KEDA reads something else than the length"
    assert pending["consumerGroup"] == GROUP
    assert targets(SPEC).keys() == {"length", "pending"}


def test_a_worker_is_added_before_the_slots_of_all_are_taken() -> None:
    slots = WorkerSettings.model_fields["worker_concurrency"].default

    assert targets(SPEC)["pending"] < slots
    assert targets(SPEC)["length"] <= slots


async def test_the_triggers_read_what_the_services_call_lag_and_pending(redis: Redis) -> None:
    stream = Keys().requests
    await redis.xgroup_create(stream, GROUP, id="0", mkstream=True)
    for number in range(40):
        await redis.xadd(stream, {"event": str(number)})
    taken: Any = await redis.xreadgroup(GROUP, "a-worker", {stream: ">"}, count=10)
    [first, *_] = [entry for entry, _ in taken[0][1]]
    await redis.xack(stream, GROUP, first)
    await redis.xdel(stream, first)

    length = await redis.xlen(stream)
    pending = await redis.xpending(stream, GROUP)
    backlog = await read_backlog(redis, Keys())
    assert (length, pending["pending"]) == (backlog.lag + backlog.pending, backlog.pending) == (39, 9)
    wanted = max(math.ceil(39 / targets(SPEC)["length"]), math.ceil(9 / targets(SPEC)["pending"]), FLOOR)
    assert Autoscaler(SPEC).decide({"length": length, "pending": pending["pending"]}) == wanted


@promise("workers are scaled by the stream, from a floor to a ceiling")
def test_without_load_there_is_the_floor() -> None:
    autoscaler = Autoscaler(SPEC)

    assert {autoscaler.decide({"length": 0, "pending": 0}) for _ in range(100)} == {FLOOR}
    assert FLOOR >= 1, "KEDA would stop the last worker"


@promise("workers are scaled by the stream, from a floor to a ceiling")
def test_a_recorded_burst_adds_workers_within_a_minute_and_removes_them_slowly() -> None:
    assert max(value["length"] for value in RECORDED) > 4 * targets(SPEC)["length"], "the recording is no burst"
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


def test_however_long_the_backlog_is_there_are_no_more_workers_than_the_ceiling() -> None:
    autoscaler = Autoscaler(SPEC)

    assert [autoscaler.decide({"length": 100_000, "pending": 300}) for _ in range(20)][-1] == CEILING
