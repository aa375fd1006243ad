"""What is run again and what is not: a handler, a real connection, and a server that counts what reaches it."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState
from plugins_mcp.mcp import ConnectionPolicy
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stdio_lines import LineDispatcher
from plugins_mcp.mcp.transport_options import Stdio
from tests.integration.servers import QUICK, connected, remote, speaking
from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer, scripted
from tests.marks import promise
from tests.support.handling import Bench, hangs
from tests.support.waiting import wait_until

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


@promise("only what is safe is retried, with back-off and Retry-After")
@pytest.mark.parametrize("execution_class", CLASSES)
async def test_a_session_that_was_lost_before_the_call_costs_nothing(execution_class: ExecutionClass) -> None:
    async with handling(first(), era=LEGACY) as (bench, peer):
        peer.session += 1
        await bench.handle(hangs, execution_class=execution_class)
        assert bench.outcome.state is CallState.SUCCEEDED
        assert [request.headers["mcp-session-id"] for request in peer.calls("add")] == ["1", "2"]


@promise("only what is safe is retried, with back-off and Retry-After")
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


# --- A child process that is killed ---

LOGGED = """
import os, pathlib
path, gate = map(pathlib.Path, {places})
log = path.open("ab", buffering=0)
log.write(b"started %d\\n" % os.getpid())
if gate.exists() and path.read_text().count("started") > 1:
    gate.read_text()
"""
"""The begin of a child that logs its starts. If it has a gate, it waits there when it is started again."""


class Child:
    """A child process with one tool, which logs its calls."""

    def __init__(self, folder: Path) -> None:
        self.gate = folder / "gate"
        self._log = folder / "log"

    def spec(self) -> ServerSpec:
        spec = speaking("log.write(b'called\\n'); say(request, {'content': []})")
        child = cast("Stdio", spec.transport)
        source = LOGGED.format(places=[str(self._log), str(self.gate)]) + child.args[1]
        return replace(spec, transport=replace(child, args=("-c", source)))

    def starts(self) -> list[int]:
        """The process ids of all that were started."""
        return [int(line.split()[1]) for line in self._log.read_text().splitlines() if line.startswith("started ")]

    def calls(self) -> int:
        """How many calls were read."""
        return self._log.read_text().count("called")

    def kill(self) -> None:
        """Kill it and wait until it is dead. Blocks, so that the worker has not noticed it afterwards."""
        pid = self.starts()[-1]
        os.kill(pid, signal.SIGKILL)
        with suppress(ChildProcessError):  # asyncio has waited for it already
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])  # as the worker
@pytest.mark.parametrize("written", [False, True])
@pytest.mark.parametrize("execution_class", CLASSES)
async def test_only_a_repeatable_call_is_sent_again_when_its_child_is_killed_twice_in_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, execution_class: ExecutionClass, written: bool
) -> None:
    child, write = Child(tmp_path), LineDispatcher._write  # pyright: ignore[reportPrivateUsage]
    strikes = 2

    def struck(lines: LineDispatcher, message: bytes) -> None:
        nonlocal strikes
        strike = strikes > 0 and b'"tools/call"' in message
        strikes -= strike
        if strike and not written:
            child.kill()  # the write fails
        write(lines, message)
        if strike and written:
            child.kill()

    monkeypatch.setattr(LineDispatcher, "_write", struck)
    async with connected(child.spec()) as server:
        bench = Bench(real=server, max_retries=4)
        await bench.handle(hangs, execution_class=execution_class)
    if execution_class is REPEATABLE:
        assert bench.outcome.state is CallState.SUCCEEDED
        assert child.calls() == 1 or written
    else:  # the worker cannot tell whether the child has read it
        assert bench.outcome.state is CallState.UNKNOWN
        assert child.calls() == 0 or written


@pytest.mark.parametrize("execution_class", CLASSES)
async def test_a_call_waits_for_a_child_that_was_killed_and_is_started_again(
    tmp_path: Path, execution_class: ExecutionClass
) -> None:
    child = Child(tmp_path)
    os.mkfifo(child.gate)
    async with connected(child.spec()) as server:
        bench = Bench(real=server)
        child.kill()
        await wait_until(lambda: len(child.starts()) == 2)
        handling = asyncio.create_task(bench.handle(hangs, execution_class=execution_class))
        await wait_until(lambda: len(bench.handler))
        child.gate.write_text("")
        await handling
    assert (bench.outcome.state, child.calls(), bench.facts.retries) == (CallState.SUCCEEDED, 1, 0)


async def test_a_call_fails_unsent_when_its_child_does_not_start_again_in_time(tmp_path: Path) -> None:
    child = Child(tmp_path)
    os.mkfifo(child.gate)
    async with connected(child.spec(), replace(QUICK, call_wait=0.2)) as server:
        bench = Bench(real=server)
        child.kill()
        await wait_until(lambda: len(child.starts()) == 2)
        await bench.handle(hangs, execution_class=REPEATABLE)
        child.gate.write_text("")
    assert bench.outcome.error is not None
    assert (bench.outcome.state, bench.outcome.error.code) == (CallState.FAILED, ErrorCode.NETWORK_ERROR)
    assert (child.calls(), bench.facts.retries) == (0, 2)
