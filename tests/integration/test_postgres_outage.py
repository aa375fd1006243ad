"""An engine whose PostgreSQL goes away or is slow: requests get 503 and scrapes get metrics, within a second."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx2
import psycopg
import pytest

from dialog_engine.observe.gauges import STORE_SECONDS
from tests.integration.engines import Model, running_engine, settings
from tests.marks import exhaustive, promise
from tests.support.postgres import PostgresServer
from tests.support.stack import running_stack
from tests.support.waiting import wait_until

CLIENTS = 16
WITHIN_SECONDS = 1.0


@dataclass
class Load:
    """Users who begin conversations, and look at them, one request after the other."""

    http: httpx2.AsyncClient
    answers: list[tuple[float, int, float]] = field(default_factory=list[tuple[float, int, float]])
    """When each request began, its status, and after how many seconds the head of its answer came."""
    not_written: list[str] = field(default_factory=list[str])

    async def user(self, name: int) -> None:
        for number in range(1_000_000):
            text = f"hello from {name}.{number}."
            if await self._timed("POST", "/v1/chat", json={"message": text}) == 503:
                self.not_written.append(text)
            await self._timed("GET", "/v1/sessions")

    async def _timed(self, method: str, path: str, **options: object) -> int:
        began = time.monotonic()
        async with self.http.stream(method, path, **options) as response:  # pyright: ignore[reportArgumentType]
            self.answers.append((began, response.status_code, time.monotonic() - began))
            body = (await response.aread()).decode()
        if response.status_code == 503:
            assert response.headers["Retry-After"]
            # A message whose COMMIT was on its way may stand: then the answer says so.
            return 0 if "not known" in body else 503
        return response.status_code

    def since(self, moment: float) -> list[tuple[int, float]]:
        return [(status, took) for began, status, took in self.answers if began + took >= moment]


@exhaustive("sixteen clients of real processes: test_postgres.py has the promise for one unit of work")
@promise("while PostgreSQL is away every request has its 503 within a second, and what it refused is not written")
@pytest.mark.timeout(180)
async def test_requests_get_503_within_a_second_when_postgresql_is_killed_stopped_or_frozen() -> None:
    with running_stack(start=False, forked=True, database="postgres", token_delay_ms=0) as stack:
        server = stack.postgres
        assert server
        await asyncio.to_thread(_start, stack.start_store, stack.redis.start, stack.start_model, stack.start_engine)
        async with httpx2.AsyncClient(base_url=stack.url, timeout=30) as http:
            load = Load(http)
            users = [asyncio.create_task(load.user(name)) for name in range(CLIENTS)]
            try:
                for fault, cure in _faults(server):
                    await _fault(load, fault, cure)
            finally:
                for user in users:
                    user.cancel()
                await asyncio.gather(*users, return_exceptions=True)
        said = {text for (text,) in stack.store.rows("SELECT content FROM messages WHERE role = 'user'")}
        assert said.isdisjoint(load.not_written)


def _start(*parts: Callable[[], object]) -> None:
    for part in parts:
        part()


def _faults(server: PostgresServer) -> list[tuple[Callable[[], None], Callable[[], None]]]:
    return [(server.kill, server.start), (server.stop, server.start), (server.freeze, server.thaw)]


async def _fault(load: Load, fault: Callable[[], None], cure: Callable[[], None]) -> None:
    began = time.monotonic()
    await wait_until(lambda: sum(status == 200 for status, _ in load.since(began)) > 30, what="answers")
    began = time.monotonic()
    await asyncio.to_thread(fault)
    try:
        refused = lambda: [took for status, took in load.since(began) if status == 503]  # noqa: E731
        await wait_until(lambda: len(refused()) > 60, what="503")
    finally:
        await asyncio.to_thread(cure)
    print(f"{len(refused())} refused, the slowest after {max(refused()):.2f} s")
    assert max(took for _, took in load.since(began)) < WITHIN_SECONDS


async def test_a_scrape_waits_for_a_slow_store_for_a_second_and_shows_what_was_measured_last(
    tmp_path: Path, redis_url: str, model: Model, postgres_url: str
) -> None:
    configured = settings(tmp_path, redis_url, model.url, database_url=postgres_url)
    async with running_engine(configured) as engine, await psycopg.AsyncConnection.connect(postgres_url) as other:

        async def scrape() -> dict[str, float]:
            lines = (await engine.client.get("/metrics")).text.splitlines()
            pairs = (line.rpartition(" ") for line in lines if line and line[0] != "#")
            return {name: float(value) for name, _, value in pairs}

        assert (await scrape())["dialog_store_measured_seconds"] < WITHIN_SECONDS
        await other.execute("LOCK TABLE outbox IN ACCESS EXCLUSIVE MODE")
        began = time.monotonic()
        first, second = await scrape(), await scrape()
        assert time.monotonic() - began < 2 * (STORE_SECONDS + WITHIN_SECONDS)
        assert [each["dialog_store_up"] for each in (first, second)] == [1, 1]
        assert second["dialog_store_measured_seconds"] > STORE_SECONDS

        await other.rollback()
        await scrape()  # of what was begun before
        assert (await scrape())["dialog_store_measured_seconds"] < WITHIN_SECONDS
