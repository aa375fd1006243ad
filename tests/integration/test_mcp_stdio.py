"""Calls to servers that are child processes, and what becomes of them when the child misbehaves."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import uvloop

from plugins_contract.catalog import ServerState
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent, Rejected, TimedOut
from plugins_mcp.mcp.listing import to_catalog
from plugins_mcp.mcp.spec import ServerSpec, ToolOptions
from plugins_mcp.mcp.transport_options import Stdio
from tests.integration.servers import QUICK, connected, demo_stdio, owned, ready, script, speaking, tool_names, traced
from tests.marks import promise
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
ERAS = ["auto", "legacy"]


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    return tmp_path / "trace"


def answer_of(result: CallResult) -> Any:
    assert isinstance(result, Answered), result
    assert not result.result.is_error, result
    return result.result.structured_content or result.result.content[0].model_dump()["text"]


async def pid_of(server: Any) -> int:
    return answer_of(await server.call("show_environment", {}, timeout_s=5))["pid"]


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_tool_is_called_and_the_offer_is_known(trace: Path, protocol: str) -> None:
    async with connected(demo_stdio(trace, protocol=protocol, trust=True)) as server:
        assert answer_of(await server.call("add", {"a": 1, "b": 2}, timeout_s=5)) == {"result": 3}
        catalog = server.catalog
        assert catalog is not None
        assert (catalog.title, catalog.version, catalog.instructions) == ("demo", "7", "Be brief.")
        assert {tool.name: tool.execution_class for tool in catalog.tools}["demo__add"] is ExecutionClass.REPEATABLE
        assert [(item.uri, item.template) for item in catalog.resources] == [
            ("demo://greeting", False),
            ("demo://people/{name}", True),
        ]
        assert [(prompt.name, prompt.arguments) for prompt in catalog.prompts] == [("summary", ("text",))]
        assert server.generation == 1


async def test_a_failure_after_the_effect_is_the_answer_of_the_tool(trace: Path) -> None:
    async with connected(demo_stdio(trace)) as server:
        result = await server.call("act_and_fail", {"name": "x"}, timeout_s=10)
        assert isinstance(result, Answered)
        assert result.result.is_error
        assert traced(trace) == ["x took effect"]


async def test_a_call_whose_time_passes_before_it_gets_a_slot_was_not_sent(trace: Path) -> None:
    async with connected(demo_stdio(trace, concurrency=1)) as server:
        call = asyncio.create_task(server.call("wait", {"name": "w"}, timeout_s=20))
        await wait_until(lambda: "w began" in traced(trace))
        assert await server.call("wait", {"name": "late"}, timeout_s=0.3) == TimedOut(sent=False)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        assert "late began" not in traced(trace)


@promise("concurrency is bounded per server")
async def test_no_more_calls_run_at_once_than_configured(trace: Path) -> None:
    async with connected(demo_stdio(trace, concurrency=2)) as server:
        calls = [server.call("wait", {"name": str(number), "seconds": 0.05}, timeout_s=20) for number in range(6)]
        await asyncio.gather(*calls)
        running = most = 0
        for line in traced(trace):
            running += 1 if line.endswith("began") else -1
            most = max(most, running)
        assert most == 2


async def test_garbage_on_standard_output_and_much_standard_error_do_no_harm(trace: Path) -> None:
    async with connected(demo_stdio(trace)) as server:
        for _ in range(3):
            assert answer_of(await server.call("shout", {"kilobytes": 256}, timeout_s=10)) == {"result": "shouted"}
        assert server.generation == 1


ANSWER = """{"jsonrpc": "2.0", "id": %d, "result": {"content": [{"type": "text", "text": "%s"}]}}"""


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
@pytest.mark.parametrize("half", [b"\\\\ud83d", b"\\xf0\\x9f"], ids=["escaped", "raw"])
async def test_a_text_that_was_cut_in_the_middle_of_a_character_is_an_answer(half: bytes) -> None:
    says = f"""
            sys.stdout.buffer.write(b'{ANSWER}' % (request["id"], b"so far{half.decode()}") + b"\\n")
            sys.stdout.flush()
    """
    async with connected(speaking(says)) as server:
        result = await server.call("t", {}, timeout_s=5)
        assert isinstance(result, Answered)
        assert result.result.content[0].model_dump()["text"].startswith("so far")


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
@pytest.mark.parametrize("says", ["say(request, 'x' * 200_000)", "while True: sys.stdout.write('x' * 1000)"])
async def test_a_line_that_is_too_long_to_be_held_ends_the_connection_and_the_next_one_is_as_good(
    says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("plugins_mcp.mcp.stdio.MAX_ANSWER_BYTES", 100_000)
    says = f"""
            if request["params"]["arguments"]:
                {says}
            else:
                say(request, {{"content": []}})
    """
    async with connected(speaking(says)) as server:
        begun = time.monotonic()
        assert isinstance(await server.call("t", {"much": True}, timeout_s=20), Ambiguous)
        assert time.monotonic() - begun < 10
        assert isinstance(await server.call("t", {}, timeout_s=20), Answered)
        assert server.generation == 2


async def test_output_that_is_not_mcp_is_logged_once_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    says = 'print("the key is hunter22 or token=hidden1"); print("again"); say(request, {"content": []})'
    async with connected(replace(speaking(says), secrets=frozenset({"hunter22"}))) as server:
        for _ in range(3):
            assert isinstance(await server.call("t", {}, timeout_s=5), Answered)
    assert [record.getMessage() for record in caplog.records if record.levelname == "WARNING"] == [
        "MCP server 'script' writes what is not MCP to standard output instead of standard error: "
        "'the key is *** or token=***\\n'"
    ]


async def test_an_answer_has_no_credential_of_the_configuration() -> None:
    says = """
            key = "the-api-key in Berlin"
            say(request, {
                "content": [
                    {"type": "text", "text": key},
                    {"type": "resource_link", "uri": f"f://{key}", "name": key},
                    {"type": "resource", "resource": {"uri": "f://a", "text": key}},
                ],
                "structuredContent": {key: [key, 1]},
            })
    """
    spec = replace(speaking(says), secrets=frozenset({"the-api-key", "Berlin"}), credentials=frozenset({"the-api-key"}))
    async with connected(spec) as server:
        result = await server.call("t", {}, timeout_s=5)
    assert isinstance(result, Answered)
    assert "the-api-key" not in result.result.model_dump_json()
    assert result.result.model_dump_json().count("*** in Berlin") == 6


@promise("the catalog says why a stdio server that writes other text than MCP is not ready")
async def test_the_catalog_says_what_a_server_that_never_speaks_mcp_writes_instead() -> None:
    text = "Loading\x1b[1m with token=hunter22 and pass9 " + "x" * 500
    source = f"import time; print({text!r}, flush=True); time.sleep(60)"
    spec = replace(script(source, connect_timeout_ms=2000), secrets=frozenset({"pass9"}))
    async with owned(spec) as server:
        await asyncio.wait_for(server.attempted.wait(), 30)
        error = server.last_error or ""
    assert (
        "its standard output, which is for MCP only, has other text: 'Loading\\x1b[1m with token=*** and *** xx"
        in error
    )
    assert len(error) < 300


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_tool_that_is_announced_is_listed(trace: Path, protocol: str) -> None:
    async with connected(demo_stdio(trace, protocol=protocol)) as server:
        await server.call("grow", {"name": "sprout"}, timeout_s=10)
        await wait_until(lambda: "sprout" in tool_names(server))


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
async def test_a_listing_that_takes_long_to_check_holds_up_nothing_else(
    trace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loop that stood still for some seconds would lose the leases of all calls."""
    threads: set[str] = set()

    def checked(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return to_catalog(*args)

    monkeypatch.setattr("plugins_mcp.mcp.server.to_catalog", checked)
    async with connected(demo_stdio(trace)) as server:
        await server.call("grow", {"name": "sprout"}, timeout_s=10)
        await wait_until(lambda: "sprout" in tool_names(server))
    assert threads
    assert threading.main_thread().name not in threads


async def test_an_unknown_tool_causes_a_new_listing(trace: Path) -> None:
    async with connected(demo_stdio(trace)) as server:
        await server.call("grow", {"name": "sprout", "announce": False}, timeout_s=10)
        await server.call("no_such_tool", {}, timeout_s=10)
        await wait_until(lambda: "sprout" in tool_names(server))


async def test_listings_are_repeated_without_being_asked(trace: Path) -> None:
    async with connected(demo_stdio(trace, protocol="legacy"), replace(QUICK, relist_every=0.1)) as server:
        await server.call("grow", {"name": "sprout", "announce": False}, timeout_s=10)
        await wait_until(lambda: "sprout" in tool_names(server))


async def test_a_disabled_tool_is_not_asked(trace: Path) -> None:
    async with connected(demo_stdio(trace, tools={"act_and_die": ToolOptions(disabled=True)})) as server:
        result = await server.call("act_and_die", {"name": "x"}, timeout_s=5)
        assert isinstance(result, Rejected)
        assert result.code is ErrorCode.DISABLED
        assert "act_and_die" not in tool_names(server)
        assert traced(trace) == []


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_tool_that_asks_the_user_gets_a_refusal(trace: Path, protocol: str) -> None:
    async with connected(demo_stdio(trace, protocol=protocol)) as server:
        result = await server.call("ask", {}, timeout_s=10)
        match result:
            case Answered(result=answer):
                assert answer.is_error
            case Rejected(code=code):
                assert code is ErrorCode.TOOL_EXECUTION_FAILED
            case _:
                pytest.fail(str(result))


async def test_a_child_gets_its_own_variables_and_none_of_ours(trace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_SECRET", "hands off")
    async with connected(demo_stdio(trace)) as server:
        shown = answer_of(await server.call("show_environment", {}, timeout_s=5))
        assert shown["env"]["TRACE"] == str(trace)
        assert "WORKER_SECRET" not in shown["env"]


async def test_stopping_ends_the_child(trace: Path) -> None:
    async with connected(demo_stdio(trace)) as server:
        pid = await pid_of(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert isinstance(await server.call("add", {"a": 1, "b": 2}, timeout_s=1), NotSent)


async def test_a_server_that_never_answers_the_handshake_fails_within_its_time() -> None:
    async with owned(script("import time; time.sleep(60)", connect_timeout_ms=300)) as server:
        await server.attempted.wait()
        assert (server.state, server.last_error) == (ServerState.FAILED, "no answer in time")


async def test_a_server_can_be_stopped_during_its_handshake() -> None:
    async with owned(script("import sys; sys.stdin.read()")) as server:
        await wait_until(lambda: server.state is ServerState.CONNECTING)


async def test_the_last_lines_of_a_dying_server_are_for_operators_only_and_without_secrets(
    caplog: pytest.LogCaptureFixture,
) -> None:
    source = "import os, sys; sys.exit('bad key ' + os.environ['KEY'] + '\\x1b[2J, Bearer abc, token=def')"
    child = Stdio(sys.executable, ("-c", source), env={"KEY": "very-secret"})
    policy = replace(QUICK, call_wait=0.0)
    async with owned(ServerSpec("script", child, secrets=frozenset({"very-secret"})), policy) as server:
        await server.attempted.wait()
        assert server.last_error == "the server process exited with code 1 during the handshake"
        result = await server.call("x", {}, timeout_s=5)
        assert isinstance(result, NotSent)
        assert "bad key" not in result.reason
        [record, *_] = caplog.records
        assert record.getMessage().endswith(
            "during the handshake; standard error: bad key ***\\x1b[2J, Bearer *** token=***"
        )


DIES_AFTER_INITIALIZE = """
import json, os, sys
id = json.loads(sys.stdin.readline())["id"]
server = {"name": "x", "version": "1"}
result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": server}
print(json.dumps({"jsonrpc": "2.0", "id": id, "result": result}), flush=True)
os.kill(os.getpid(), 9)
"""
KILLED = "the server process was killed by signal 9 during the handshake"
GROWING = replace(QUICK, first_delay=0.01, longest_delay=60.0)
"""The pause after some attempts is long enough to stop in it, and not while a child is being started."""
EXITED = "the server process exited with code 3 during the handshake"


@pytest.mark.parametrize("loop_factory", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize(
    ("source", "protocol", "error"),
    [
        (DIES_AFTER_INITIALIZE, "legacy", KILLED),
        ("raise SystemExit(3)", "legacy", EXITED),
        ("raise SystemExit(3)", "auto", EXITED),
        ("import os, time; os.close(0); time.sleep(0.1); os._exit(3)", "auto", EXITED),
    ],
    ids=["killed after initialize", "exits", "exits when probed", "closes its input and exits"],
)
def test_a_child_that_dies_in_its_handshake_is_a_clear_error_and_no_internal_one(
    source: str,
    protocol: str,
    error: str,
    loop_factory: Callable[[], asyncio.AbstractEventLoop],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """uvloop, which the worker uses, raises other errors than asyncio when a message is written to a dead child."""
    errors: set[str | None] = set()
    retries: set[float | None] = set()

    async def fail_several_times() -> None:
        async with owned(script(source, protocol=protocol), GROWING) as it:
            await it.attempted.wait()

            def failed_often() -> bool:
                errors.add(it.last_error)
                retries.add(it.breaker.retry_at)
                return len(retries) > 5

            await wait_until(failed_often, 20)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(fail_several_times())
    assert errors == {error}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in caplog.records if error in record.getMessage()]


async def test_a_command_that_does_not_exist_is_named() -> None:
    async with owned(ServerSpec("missing", Stdio("/no/such/command"))) as server:
        await server.attempted.wait()
        assert "/no/such/command" in (server.last_error or "")


async def test_calls_to_a_server_that_is_down_for_long_fail_at_once() -> None:
    async with owned(script("raise SystemExit"), replace(QUICK, call_wait=0.1)) as server:
        await server.attempted.wait()
        await wait_until(lambda: isinstance(server.last_error, str))
        async with asyncio.timeout(2):
            assert isinstance(await server.call("x", {}, timeout_s=60), NotSent)


OLD_SERVER = """
import json, sys
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "server/discover":
        sys.exit("what is server/discover?")
    name = {"name": "old", "version": "1"}
    about = {"protocolVersion": "2024-11-05", "capabilities": {"tools": {}}, "serverInfo": name}
    tools = {"tools": [{"name": "old", "inputSchema": {"type": "object"}}]}
    results = {"initialize": about, "tools/list": tools}
    if "id" in message:
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": results[message["method"]]}), flush=True)
"""


async def test_a_server_that_exits_when_probed_is_not_probed_again() -> None:
    async with connected(script(OLD_SERVER)) as server:
        assert tool_names(server) == ["old"]


async def test_a_pinned_protocol_is_not_negotiated() -> None:
    async with connected(script(OLD_SERVER, protocol="legacy")) as server:
        assert server.generation == 1


async def test_a_server_that_hangs_between_calls_is_started_anew(trace: Path) -> None:
    policy = replace(QUICK, relist_every=0.1, list_timeout=0.3)
    async with connected(demo_stdio(trace, protocol="legacy"), policy) as server:
        pid = await pid_of(server)
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: server.generation >= 2 and ready(server), 20)
        assert await pid_of(server) != pid


async def test_a_server_that_is_busy_with_a_call_is_left_alone(trace: Path) -> None:
    policy = replace(QUICK, relist_every=0.1, list_timeout=0.2)
    async with connected(demo_stdio(trace), policy) as server:
        pid = await pid_of(server)
        call = asyncio.create_task(server.call("wait", {"name": "w", "seconds": 1}, timeout_s=20))
        await wait_until(lambda: "w began" in traced(trace))
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: server.state is ServerState.FAILED)
        os.kill(pid, signal.SIGCONT)
        assert isinstance(await call, Answered)
        await wait_until(lambda: ready(server))
        assert server.generation == 1
