"""What is run again and what is not: a handler, a real connection, and a server that counts what reaches it."""

import asyncio
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace

import anyio
import pytest

from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from plugins_mcp.mcp import ConnectionPolicy
from tests.integration.servers import QUICK, connected, remote
from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer, scripted
from tests.support.handling import Bench, hangs
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

ONCE, REPEATABLE = ExecutionClass.ONCE, ExecutionClass.REPEATABLE
CLASSES = [ONCE, REPEATABLE]


def first(*behaviours: Behaviour) -> Behaviour:
    """Behave so, call after call; then answer."""
    rest = list(behaviours)

    async def behave(request: Request) -> None:
        await (rest.pop(0)(request) if rest else request.text("done"))

    return behave


def refusal(status: int, retry_after: str | None = None) -> Behaviour:
    async def behave(request: Request) -> None:
        headers = {"retry_after": retry_after} if retry_after else {}
        await request.respond(status, b"", "", **headers)

    return behave


async def cut(request: Request) -> None:
    await request.hang_up()


@asynccontextmanager
async def handling(
    behaviour: Behaviour, *, era: str = MODERN, policy: ConnectionPolicy = QUICK, max_retries: int = 2
) -> AsyncGenerator[tuple[Bench, ScriptedServer]]:
    async with scripted(era, add=behaviour) as peer, connected(remote(peer.url), policy) as server:
        yield Bench(real=server, max_retries=max_retries), peer


@pytest.mark.parametrize("execution_class", CLASSES)
@pytest.mark.parametrize("status", [429, 503])
async def test_a_server_that_is_too_busy_is_asked_again_when_it_said(
    status: int, execution_class: ExecutionClass
) -> None:
    async with handling(first(refusal(status, "1"))) as (bench, peer):
        begun = time.monotonic()
        await bench.handle(hangs, execution_class=execution_class)
        assert bench.outcome.state is CallState.SUCCEEDED
        assert len(peer.calls("add")) == 2
        assert 0.95 <= time.monotonic() - begun < 5


@pytest.mark.parametrize("execution_class", CLASSES)
async def test_a_session_that_was_lost_before_the_call_costs_nothing(execution_class: ExecutionClass) -> None:
    async with handling(first(), era=LEGACY) as (bench, peer):
        peer.session += 1
        await bench.handle(hangs, execution_class=execution_class)
        assert bench.outcome.state is CallState.SUCCEEDED
        assert [request.headers["mcp-session-id"] for request in peer.calls("add")] == ["1", "2"]


@pytest.mark.parametrize("execution_class", CLASSES)
async def test_a_server_that_is_down_for_a_moment_costs_nothing(execution_class: ExecutionClass) -> None:
    async with handling(first()) as (bench, peer):
        await peer.stop()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(lambda: bench.handle(hangs, execution_class=execution_class))
            await wait_until(lambda: bench.facts.retries)
            await peer.start()
        assert bench.outcome.state is CallState.SUCCEEDED
        assert len(peer.calls("add")) == 1


@pytest.mark.parametrize(
    ("execution_class", "state", "calls"), [(ONCE, CallState.UNKNOWN, 1), (REPEATABLE, CallState.SUCCEEDED, 2)]
)
@pytest.mark.parametrize("behaviour", [cut, refusal(500), refusal(502)], ids=["cut", "500", "502"])
async def test_after_an_open_end_only_what_may_run_twice_is_run_again(
    behaviour: Behaviour, execution_class: ExecutionClass, state: CallState, calls: int
) -> None:
    async with handling(first(behaviour)) as (bench, peer):
        await bench.handle(hangs, execution_class=execution_class)
        assert bench.outcome.state is state
        assert len(peer.calls("add")) == calls


async def test_a_once_call_that_was_refused_and_then_cut_is_not_run_again() -> None:
    async with handling(first(refusal(503), cut)) as (bench, peer):
        await bench.handle(hangs, execution_class=ONCE)
        assert bench.outcome.state is CallState.UNKNOWN
        assert len(peer.calls("add")) == 2


@pytest.mark.parametrize("execution_class", CLASSES)
@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_no_more_retries_are_made_than_are_set(retries: int, execution_class: ExecutionClass) -> None:
    async with handling(first(*[refusal(503)] * 9), max_retries=retries) as (bench, peer):
        await bench.handle(hangs, execution_class=execution_class)
        assert bench.outcome.state is CallState.FAILED
        assert len(peer.calls("add")) == retries + 1


async def test_a_failure_names_the_server_and_what_its_breaker_says() -> None:
    policy = replace(QUICK, first_delay=5.0, longest_delay=5.0)
    async with handling(first(*[refusal(503)] * 99), policy=policy, max_retries=0) as (bench, peer):
        for _ in range(QUICK.failure_threshold):
            await bench.handle(hangs)
        asked = len(peer.calls("add"))
        await bench.handle(hangs)
        _, outcome, _ = bench.ledger.outcomes[-1]
        assert outcome.error is not None
        assert outcome.error.message.startswith("the MCP server 'demo' was not reached: circuit open")
        assert len(peer.calls("add")) == asked


async def never(request: Request) -> None:
    await request.gone.wait()


@pytest.mark.parametrize(
    ("cut", "sent", "waiting"),
    [
        ("caller", CallState.UNKNOWN, CallState.CANCELLED),
        ("lease", CallState.UNKNOWN, None),
        ("worker", CallState.UNKNOWN, None),
    ],
)
async def test_a_call_that_is_cut_off_while_it_waits_for_a_slot_was_not_run(
    cut: str, sent: CallState, waiting: CallState | None
) -> None:
    async with scripted(add=never) as peer, connected(remote(peer.url, concurrency=1)) as server:
        benches = [Bench(real=server), Bench(real=server)]
        works: list[asyncio.Task[None]] = []
        for bench in benches:
            works.append(asyncio.create_task(bench.handle(hangs)))
            await wait_until(lambda: bench.leases.holding and peer.calls("add"))  # noqa: B023 - asked within the round
            await anyio.wait_all_tasks_blocked()
        for bench, work in reversed(list(zip(benches, works, strict=True))):
            match cut:
                case "caller":
                    bench.leases.cancel()
                case "lease":
                    bench.leases.lose()
                case _:
                    work.cancel()
            await asyncio.wait([work])
        assert len(peer.calls("add")) == 1
        assert benches[0].outcome.state is sent
        assert [outcome.state for _, outcome, _ in benches[1].ledger.outcomes] == ([waiting] if waiting else [])
        assert bool(benches[1].ledger.released) is (waiting is None)
