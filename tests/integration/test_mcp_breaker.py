"""The circuit breaker at work: which calls open it, what it spares them, how it closes again, and who sees it."""

import asyncio
import logging
from dataclasses import replace

import pytest

from plugins_contract.catalog import BreakerState, ServerState
from plugins_mcp.mcp import Ambiguous, Answered, McpServer, McpServers, NotSent, RetryLater, TimedOut
from plugins_mcp.mcp.calls import SendState
from plugins_mcp.mcp.circuit_breaker import MAX_LATE
from tests.integration.servers import QUICK, connected, ready, remote, speaking
from tests.integration.servers.behaviours import answer, never, status
from tests.integration.servers.scripted import LEGACY, MODERN, Request, ScriptedServer, scripted
from tests.marks import promise
from tests.support.waiting import wait_until

POLICY = replace(QUICK, failure_threshold=3, first_delay=0.3, longest_delay=0.6, min_counted_timeout=0.05)
PATIENT = replace(POLICY, first_delay=5.0, longest_delay=5.0)
ERAS = [MODERN, LEGACY]
LATE = 15
"""Calls of one user that are late: more than a server may fail."""


async def open_by_overload(server: McpServer) -> None:
    for _ in range(POLICY.failure_threshold):
        assert isinstance(await server.call("overloaded", {}, timeout_s=5), RetryLater)
    assert server.breaker.state is BreakerState.OPEN


@promise("a circuit breaker per MCP server, its state visible")
@pytest.mark.parametrize("era", ERAS)
async def test_several_refusals_in_a_row_open_the_circuit(era: str) -> None:
    async with (
        scripted(era, overloaded=status(503), tool=answer) as peer,
        connected(remote(peer.url), PATIENT) as server,
    ):
        await open_by_overload(server)
        result = await server.call("tool", {}, timeout_s=20)
        assert isinstance(result, NotSent)
        assert result.reason.startswith("circuit open, it is tried again in ")
        assert result.reason.endswith(" s: HTTP 503")
        assert result.retry_in is not None
        assert 3.0 < result.retry_in <= 6.0  # it was not waited for
        assert peer.calls("tool") == []
        assert (server.state, server.last_error) == (ServerState.FAILED, "HTTP 503")


async def test_when_the_time_has_come_one_call_is_the_probe_and_its_answer_lets_all_through() -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> None:
        await release.wait()
        await request.text("fine")

    async with scripted(overloaded=status(503), slow=slow) as peer, connected(remote(peer.url), POLICY) as server:
        await open_by_overload(server)
        await wait_until(lambda: not server.breaker.retry_in())
        probe = asyncio.create_task(server.call("slow", {}, timeout_s=20))
        await wait_until(lambda: peer.calls("slow"))
        assert server.breaker.state is BreakerState.HALF_OPEN
        assert isinstance(await server.call("slow", {}, timeout_s=20), NotSent)
        release.set()
        assert isinstance(await probe, Answered)
        assert server.breaker.state is BreakerState.CLOSED
        assert (server.state, server.last_error) == (ServerState.READY, None)
        results = await asyncio.gather(*(server.call("slow", {}, timeout_s=20) for _ in range(5)))
        assert all(isinstance(result, Answered) for result in results)


async def test_a_probe_that_is_cancelled_leaves_the_next_call_to_be_the_probe() -> None:
    async with (
        scripted(overloaded=status(503), hang=never, tool=answer) as peer,
        connected(remote(peer.url), POLICY) as server,
    ):
        await open_by_overload(server)
        await wait_until(lambda: not server.breaker.retry_in())
        probe = asyncio.create_task(server.call("hang", {}, timeout_s=20))
        await wait_until(lambda: peer.calls("hang"))
        probe.cancel()
        await asyncio.gather(probe, return_exceptions=True)
        assert isinstance(await server.call("tool", {}, timeout_s=5), Answered)


@promise("one subject's slow calls are refused to that subject alone, and a server that hangs is still found")
async def test_calls_of_several_users_that_hang_open_it() -> None:
    policy = replace(PATIENT, failure_threshold=MAX_LATE + 1)
    async with scripted(hang=never) as peer, connected(remote(peer.url), policy) as server:
        for number in range(policy.failure_threshold):
            assert isinstance(await server.call("hang", {}, subject=f"user {number}", timeout_s=0.1), TimedOut)
        assert isinstance(await server.call("hang", {}, subject="ann", timeout_s=20), NotSent)
        assert len(peer.calls("hang")) == policy.failure_threshold


async def test_an_open_one_refuses_without_waiting_for_a_slot() -> None:
    async with (
        scripted(hang=never, overloaded=status(503)) as peer,
        connected(remote(peer.url, concurrency=1), replace(PATIENT, failure_threshold=1)) as server,
    ):
        await server.call("overloaded", {}, timeout_s=5)
        # The only slot is taken, as by a call from before the circuit opened.
        async with asyncio.timeout(None) as total, server.connection._slot(total):  # pyright: ignore[reportPrivateUsage]
            assert isinstance(await asyncio.wait_for(server.call("hang", {}, timeout_s=20), 2), NotSent)


@promise("one subject's slow calls are refused to that subject alone, and a server that hangs is still found")
async def test_late_calls_of_one_user_refuse_that_user_this_tool_and_nobody_else() -> None:
    policy = replace(PATIENT, failure_threshold=5)
    async with (
        scripted(hang=never, tool=answer) as peer,
        connected(remote(peer.url, concurrency=LATE), policy) as server,
    ):
        late = await asyncio.gather(*(server.call("hang", {}, subject="ann", timeout_s=1.0) for _ in range(LATE)))
        assert {type(result) for result in late} == {TimedOut}

        assert server.breaker.state is BreakerState.CLOSED
        refused = await server.call("hang", {}, subject="ann", timeout_s=20)
        assert isinstance(refused, RetryLater)
        assert refused.after_s
        assert len(peer.calls("hang")) == LATE
        assert isinstance(await server.call("tool", {}, subject="ann", timeout_s=20), Answered)
        assert isinstance(await server.call("hang", {}, subject="bob", timeout_s=0.1), TimedOut)


@promise("one subject's slow calls are refused to that subject alone, and a server that hangs is still found")
async def test_a_server_that_hangs_for_one_user_is_found_out_by_its_owner() -> None:
    # The owner lists in the session or, if no call is left in it, in a new one: that takes as long as connecting may.
    policy = replace(QUICK, list_timeout=0.2, call_wait=0.1, min_counted_timeout=0.05)
    async with scripted(hang=never) as peer, connected(remote(peer.url, connect_timeout_ms=2000), policy) as server:
        peer.behaviours["tools/list"] = never
        assert isinstance(await server.call("hang", {}, subject="ann", timeout_s=0.1), TimedOut)
        await wait_until(lambda: server.breaker.state is BreakerState.OPEN)


@pytest.mark.parametrize(
    ("timeout", "granted"), [(0.04, None), (0.1, 1.0)], ids=["hardly any left", "waited elsewhere"]
)
async def test_calls_that_had_little_of_their_time_at_the_server_say_nothing_about_it(
    timeout: float, granted: float | None
) -> None:
    async with scripted(hang=never) as peer, connected(remote(peer.url), POLICY) as server:
        for _ in range(POLICY.failure_threshold + 2):
            assert isinstance(await server.call("hang", {}, timeout_s=timeout, granted_s=granted), TimedOut)
        assert server.breaker.state is BreakerState.CLOSED


async def test_a_connection_that_takes_many_calls_along_counts_once() -> None:
    says = """
            match request["params"]["arguments"]:
                case {"die": True}: os._exit(1)
                case {"answer": True}: say(request, {"content": []})
    """
    async with connected(speaking(says), replace(QUICK, failure_threshold=3)) as server:
        states = [SendState() for _ in range(6)]
        calls = [asyncio.create_task(server.call("t", {}, timeout_s=20, send_state=state)) for state in states]
        await wait_until(lambda: all(state.sent for state in states))
        await server.call("t", {"die": True}, timeout_s=10)
        assert all(isinstance(result, Ambiguous) for result in await asyncio.gather(*calls))
        assert server.breaker.state is BreakerState.CLOSED
        assert isinstance(await server.call("t", {"answer": True}, timeout_s=10), Answered)


@promise("a circuit breaker per MCP server, its state visible")
async def test_an_open_circuit_is_logged_once_and_shown_in_health(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    peer = ScriptedServer(behaviours={"tool": answer})
    await peer.start()
    await peer.stop()
    servers = McpServers([remote(peer.url)], policy=replace(QUICK, call_wait=0.0))
    async with asyncio.TaskGroup() as group:
        group.create_task(servers.run())
        server = servers.get("remote")
        assert server is not None
        attempts: set[float | None] = set()

        def tried_some_times() -> bool:
            attempts.add(server.breaker.retry_at)
            return len(attempts) > 5

        await wait_until(tried_some_times)
        health = servers.health()["remote"]
        assert health.state is ServerState.FAILED
        assert health.breaker is not BreakerState.CLOSED
        assert {"state", "breaker", "error", "retryInSeconds"} == set(health.as_json())
        await peer.start()
        await wait_until(lambda: ready(server))
        assert servers.health()["remote"].as_json() == {"state": "ready", "breaker": "closed"}
        servers.stop()
    await peer.stop()
    logged = [record.message for record in caplog.records if "circuit" in record.message]
    assert len(logged) == 2
    assert "circuit open, calls are refused for" in logged[0]
    assert logged[1] == "MCP server 'remote': circuit closed"
