"""Who uses how much, now and over the last hour: at all engines together, in bounded memory, and without Redis."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from callstream_runtime.connections import command_client
from dialog_engine.config.store import OperatorSettings
from dialog_engine.consumption.subjects import (
    KEPT_OF_EACH,
    MAX_TRACKED,
    OTHERS,
    PERIOD_SECONDS,
    PERIODS,
    STALE_SECONDS,
    Report,
    SubjectUse,
    Use,
    first,
)
from dialog_engine.errors import ConfigurationError
from dialog_engine.identity.api_keys import add_key
from dialog_engine.identity.principal import OPERATOR
from dialog_engine.operators import subjects
from plugins_contract.keys import Keys
from tests.integration.engines import Model, running_engine, settings
from tests.marks import promise
from tests.support.hand_clock import HandClock


def by_name(report: Report) -> dict[str, Use]:
    return {use.subject: use for use in report.uses}


@promise("operators see which subjects use most, at all engines, however many there are")
async def test_engines_add_up_what_is_open_and_what_was_counted_in_the_last_hour(redis: Any) -> None:
    clock = HandClock(1_000_000.0 * PERIOD_SECONDS)
    here, there = (SubjectUse(redis, Keys(), clock=clock) for _ in range(2))
    end = here.opened("streams", "ann")
    there.opened("streams", "ann")
    there.opened("running", "bob")
    here.count("tokens", "ann", 700)
    there.count("tokens", "ann", 300)
    there.count("refusals", "bob")
    await there.publish()
    found = by_name(await here.report())
    assert (found["ann"].now, found["ann"].hour) == ([2, 0], [0, 0, 1000, 0])
    assert (found["bob"].now, found["bob"].hour) == ([0, 1], [0, 0, 0, 1])
    end()
    end()
    clock.now += STALE_SECONDS + 1  # the other one has died: what it had open is gone, what it counted is not
    report = await here.report()
    assert report.engines == 1
    assert by_name(report)["bob"].hour == [0, 0, 0, 1]
    assert by_name(report)["ann"].now == [0, 0]
    clock.now += PERIODS * PERIOD_SECONDS
    assert (await here.report()).uses == []
    assert len(await redis.hkeys(Keys().subjects)) == 1
    assert 0 < await redis.ttl(Keys().subjects) <= (PERIODS + 1) * PERIOD_SECONDS


@promise("operators see which subjects use most, at all engines, however many there are")
async def test_very_many_subjects_take_bounded_memory_and_do_not_hide_those_that_use_most(redis: Any) -> None:
    clock = HandClock(1_000_000.0 * PERIOD_SECONDS)
    use = SubjectUse(redis, Keys(), clock=clock)
    for number in range(100_000):
        use.count("refusals", f"stranger {number}" + "x" * 1_000)
        if number % 100 == 0:
            use.count("refusals", "flood")
            use.count("tokens", "heavy", 5)
    [period] = use._periods.values()  # pyright: ignore[reportPrivateUsage]
    assert len(period) <= MAX_TRACKED
    report = await use.report()
    assert len(report.uses) <= 4 * KEPT_OF_EACH
    assert [each.subject for each in first(report.uses, 2)] == ["heavy", "flood"]
    assert report.uses[-1].subject == OTHERS
    assert first(report.uses, 1, "tokens")[0].hour == [0, 0, 5_000, 0]
    found = by_name(report)
    assert found["flood"].hour[3] == 1_000
    assert sum(each.hour[3] for each in report.uses) == 101_000  # nothing is lost: the rest is added up
    assert sum(len(value) for value in (await redis.hgetall(Keys().subjects)).values()) < 100_000
    clock.now += PERIOD_SECONDS
    use.count("turns", "ann")
    assert sum(map(len, use._periods.values())) < KEPT_OF_EACH  # pyright: ignore[reportPrivateUsage]


@promise("operators see which subjects use most, at all engines, however many there are")
async def test_without_redis_an_engine_reports_its_own_numbers_and_the_command_says_so(tmp_path: Path) -> None:
    away = "redis://127.0.0.1:1/0"
    async with command_client(away) as client:
        use = SubjectUse(client, Keys())
        use.count("turns", "ann")
        report = await use.report()
    assert (report.complete, [each.subject for each in report.uses]) == (False, ["ann"])
    configured = OperatorSettings.model_validate({"redis_url": away, "outbox_path": tmp_path / "none"})
    with pytest.raises(ConfigurationError, match="/operators/subjects"):
        await asyncio.to_thread(subjects.report, configured)


@promise("operators see which subjects use most, at all engines, however many there are")
async def test_a_flood_is_named_by_the_api_and_the_command(tmp_path: Path, redis_url: str, model: Model) -> None:
    keys = "ann:" + "a" * 40 + ",bob:" + "b" * 40
    _, operator = add_key(tmp_path / "keys", "ops", [OPERATOR], None)
    configured = settings(
        tmp_path, redis_url, model.url, api_keys=keys, api_keys_file=tmp_path / "keys", subject_requests_per_minute=20
    )
    async with running_engine(configured) as engine:
        engine.client.headers["authorization"] = "Bearer " + "b" * 40
        await engine.chat("Hello.")
        assert (await engine.client.get("/operators/subjects")).status_code == 403
        engine.client.headers["authorization"] = "Bearer " + "a" * 40
        for _ in range(60):
            await engine.client.get("/v1/models")
        engine.client.headers["authorization"] = f"Bearer {operator}"
        answer = (await engine.client.get("/operators/subjects?limit=1&by=refusals")).json()
        assert (answer["complete"], answer["engines"], answer["subjects"][0]["subject"]) == (True, 1, "ann")
        assert answer["subjects"][0]["lastHour"]["refusals"] >= 20
        assert (await engine.client.get("/operators/subjects?limit=0")).status_code == 422
    found = await asyncio.to_thread(subjects.report, OperatorSettings.model_validate({"redis_url": redis_url}))
    ann, bob = by_name(found)["ann"], by_name(found)["bob"]
    assert ann.of("refusals") >= 20
    assert (bob.of("turns"), bob.of("refusals"), bob.now) == (1, 1, [0, 0])
    assert bob.of("tokens") > 0
    table = list(subjects.as_text(found, 10, "refusals"))
    assert table[2].startswith("ann ")
    shown = json.loads(subjects.as_json(ann, OperatorSettings.model_validate({"redis_url": redis_url})))
    assert (shown["subject"], shown["refusals"]) == ("ann", ann.of("refusals"))
