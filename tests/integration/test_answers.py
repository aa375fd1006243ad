"""What workers answered is looked up in a real Redis."""

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from redis.asyncio import Redis

from dialog_engine.streams.answers import LedgerAnswers
from plugins_contract.connections import command_client, thread_client
from plugins_contract.ids import new_id
from plugins_contract.outcomes import ToolOutcome
from tests.support.ledger import CANCELLED, Bench, answered
from tests.support.servers import LocalServer

pytestmark = pytest.mark.anyio
LONG = answered("a line\n" * 50_000)


@pytest.fixture
async def bench(redis: Redis, redis_url: str) -> AsyncGenerator[Bench]:
    with thread_client(redis_url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        yield bench


async def finished(bench: Bench, outcome: ToolOutcome) -> str:
    """A call that a worker has answered so."""
    delivery, fence = await bench.running()
    await bench.worker.complete(delivery, fence, outcome)
    return delivery.request.correlation_id


async def test_the_outcome_of_a_finished_call_is_had_as_its_worker_sent_it(bench: Bench) -> None:
    answers = LedgerAnswers(bench.engine)
    assert await answers.outcome(await finished(bench, LONG)) == LONG
    assert await answers.outcome(await finished(bench, CANCELLED)) == CANCELLED


async def test_of_an_open_and_of_an_unknown_call_there_is_no_outcome(bench: Bench) -> None:
    answers = LedgerAnswers(bench.engine)
    delivery, _ = await bench.running()
    assert await answers.outcome(delivery.request.correlation_id) is None
    assert await answers.outcome(new_id()) is None


async def test_an_outcome_that_cannot_be_read_is_none(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    correlation_id = await finished(bench, LONG)
    await bench.redis.hdel(bench.keys.call(correlation_id), "answer")
    await bench.redis.hset(bench.keys.call(correlation_id), "reply", b'{"kind":"of another time"}')
    assert await LedgerAnswers(bench.engine).outcome(correlation_id) is None
    assert "cannot be read" in caplog.text


async def test_while_redis_is_away_there_is_no_outcome_and_later_there_is(own_redis: LocalServer) -> None:
    redis: Any = command_client(own_redis.url)
    with thread_client(own_redis.url) as thread:
        bench = Bench(redis, thread)
        await bench.open()
        correlation_id = await finished(bench, LONG)
        own_redis.kill()
        assert await LedgerAnswers(bench.engine).outcome(correlation_id) is None
        own_redis.start()
        assert await LedgerAnswers(bench.engine).outcome(correlation_id) == LONG
    await redis.aclose()
