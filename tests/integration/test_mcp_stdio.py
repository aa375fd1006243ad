"""Calls to servers that are child processes, and what becomes of them when the child misbehaves."""

import asyncio
import os
import signal
import sys
import threading
import time
from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import uvloop

from plugins_contract.catalog import ServerState
from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, McpServer, NotSent, Rejected, TimedOut
from plugins_mcp.mcp.listing import to_catalog
from plugins_mcp.mcp.servers import McpServers
from plugins_mcp.mcp.servers_file import parse_entry
from plugins_mcp.mcp.spec import ServerSpec, ToolOptions
from plugins_mcp.mcp.stdio import ChildDiagnostics, open_child
from plugins_mcp.mcp.transport_options import Stdio
from tests.integration.servers import QUICK, connected, demo_stdio, owned, ready, remote, script, speaking, tool_names
from tests.integration.servers.behaviours import never
from tests.integration.servers.every_transport import over
from tests.integration.servers.scripted import Request, scripted
from tests.marks import promise
from tests.support.waiting import wait_until


@pytest.fixture(scope="module", params=["auto", "legacy"])
async def demo(request: pytest.FixtureRequest) -> AsyncGenerator[McpServer]:
    """A server made with the SDK, which takes a second to start."""
    async with connected(demo_stdio(protocol=request.param)) as server:
        yield server


def answer_of(result: CallResult) -> Any:
    assert isinstance(result, Answered), result
    assert not result.result.is_error, result
    return result.result.structured_content or result.result.content[0].model_dump()["text"]


async def test_a_tool_is_called_and_the_offer_is_known(demo: McpServer) -> None:
    assert answer_of(await demo.call("add", {"a": 1, "b": 2}, timeout_s=5)) == {"result": 3}
    catalog = demo.catalog
    assert catalog is not None
    assert (catalog.title, catalog.version, catalog.instructions) == ("demo", "7", "Be brief.")
    assert "demo__add" in [tool.name for tool in catalog.tools]
    offered = {(item.uri, item.template) for item in catalog.resources}
    assert offered == {("demo://greeting", False), ("demo://people/{name}", True)}
    assert [(prompt.name, prompt.arguments) for prompt in catalog.prompts] == [("summary", ("text",))]


async def test_garbage_on_standard_output_and_much_standard_error_do_no_harm(demo: McpServer) -> None:
    for _ in range(3):
        assert answer_of(await demo.call("shout", {"kilobytes": 256}, timeout_s=10)) == {"result": "shouted"}
    assert demo.generation == 1


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
async def test_a_tool_that_is_announced_is_listed_by_a_thread(demo: McpServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that stood still for some seconds would lose the leases of all calls."""
    threads: set[str] = set()

    def checked(*args: Any) -> Any:
        threads.add(threading.current_thread().name)
        return to_catalog(*args)

    monkeypatch.setattr("plugins_mcp.mcp.server.to_catalog", checked)
    await demo.call("grow", {"name": "sprout"}, timeout_s=10)
    await wait_until(lambda: "sprout" in tool_names(demo))
    assert threads
    assert threading.main_thread().name not in threads


async def test_an_unknown_tool_causes_a_new_listing(demo: McpServer) -> None:
    await demo.call("grow", {"name": "weed", "announce": False}, timeout_s=10)
    await demo.call("no_such_tool", {}, timeout_s=10)
    await wait_until(lambda: "weed" in tool_names(demo))


@promise("concurrency is bounded per server")
async def test_no_more_calls_run_at_once_than_configured_and_one_that_gets_no_slot_in_time_was_not_sent() -> None:
    async def wait(request: Request) -> None:
        await release.wait()
        await request.text("at last")

    release = asyncio.Event()
    async with scripted(wait=wait) as peer, connected(remote(peer.url, concurrency=2)) as server:
        calls = [asyncio.create_task(server.call("wait", {}, timeout_s=20)) for _ in range(4)]
        await wait_until(lambda: len(peer.calls("wait")) == 2)
        assert await server.call("wait", {"name": "late"}, timeout_s=0.3) == TimedOut(sent=False)
        assert len(peer.calls("wait")) == 2
        release.set()
        assert all(isinstance(result, Answered) for result in await asyncio.gather(*calls))
        assert len(peer.calls("wait")) == 4


async def test_listings_are_repeated_without_being_asked() -> None:
    async with scripted(one=never) as peer, connected(remote(peer.url), replace(QUICK, relist_every=0.1)) as server:
        peer.behaviours["sprout"] = never
        await wait_until(lambda: "sprout" in tool_names(server))


async def test_a_disabled_tool_is_not_asked() -> None:
    tools = {"tool": ToolOptions(disabled=True)}
    async with scripted(tool=never, other=never) as peer, connected(remote(peer.url, tools=tools)) as server:
        result = await server.call("tool", {}, timeout_s=5)
        assert isinstance(result, Rejected)
        assert result.code is ErrorCode.DISABLED
        assert tool_names(server) == ["other"]
        assert peer.calls("tool") == []


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
async def test_a_line_without_an_end_ends_the_connection_and_the_next_one_is_as_good() -> None:
    says = """
            while request["params"]["arguments"]:
                sys.stdout.write("x" * 1_000_000)
            say(request, {"content": []})
    """
    async with connected(speaking(says)) as server:
        begun = time.monotonic()
        assert isinstance(await server.call("t", {"much": True}, timeout_s=20), Ambiguous)
        assert time.monotonic() - begun < 10
        assert isinstance(await server.call("t", {}, timeout_s=20), Answered)
        assert server.generation == 2


async def test_output_that_is_not_mcp_is_logged_once_without_secrets(caplog: pytest.LogCaptureFixture) -> None:
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
    spec = replace(script(source, connect_timeout_ms=1000, protocol="legacy"), secrets=frozenset({"pass9"}))
    async with owned(spec) as server:
        await asyncio.wait_for(server.attempted.wait(), 30)
        error = server.last_error or ""
    assert (
        "its standard output, which is for MCP only, has other text: 'Loading\\x1b[1m with token=*** and *** xx"
        in error
    )
    assert len(error) < 300


async def test_a_child_gets_its_own_variables_and_none_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORKER_SECRET", "hands off")
    async with over("stdio", {"tool": never}) as peer:
        spec, _ = parse_entry("scripted", peer.entry(env={"TRACE": "on"}), {})
        async with connected(spec):
            environment = peer.requests[0].params["env"]
    assert environment["TRACE"] == "on"
    assert "WORKER_SECRET" not in environment


TELLS_ITS_PID = """say(request, {"content": [{"type": "text", "text": str(os.getpid())}]})"""


async def pid_of(server: McpServer) -> int:
    return int(answer_of(await server.call("t", {}, timeout_s=5)))


async def test_stopping_ends_the_child() -> None:
    async with connected(speaking(TELLS_ITS_PID)) as server:
        pid = await pid_of(server)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert isinstance(await server.call("t", {}, timeout_s=1), NotSent)


async def test_a_server_that_never_answers_the_handshake_fails_within_its_time() -> None:
    async with owned(script("import sys; sys.stdin.read()", connect_timeout_ms=300)) as server:
        await server.attempted.wait()
        assert (server.state, server.last_error) == (ServerState.FAILED, "no answer in time")


async def test_a_server_can_be_stopped_during_its_handshake() -> None:
    async with owned(script("import sys; sys.stdin.read()")) as server:
        await wait_until(lambda: server.state is ServerState.CONNECTING)


async def test_a_child_is_ended_also_when_its_end_is_cancelled(tmp_path: Path) -> None:
    command = Stdio("sh", ("-c", f"echo $$ > {tmp_path}/pid; exec sleep 60"))  # it does not end with its input
    listener = cast("Any", SimpleNamespace(lost=lambda: None))

    async def run() -> None:
        async with open_child(command, ChildDiagnostics(), ServerSpec("sleeping", command), listener):
            is_open.set()
            await asyncio.get_running_loop().create_future()

    is_open = asyncio.Event()
    running = asyncio.create_task(run())
    await is_open.wait()
    pid = int(await wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text()) or 0)
    for _ in range(2):
        running.cancel()
        for _ in range(20):
            await asyncio.sleep(0)  # it waits for the child
    await asyncio.wait([running])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


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
    source: str, protocol: str, error: str, caplog: pytest.LogCaptureFixture
) -> None:
    """uvloop, on which the worker runs, raises other errors than asyncio when a message is written to a dead child."""
    errors: set[str | None] = set()
    retries: set[float | None] = set()

    async def fail_several_times() -> None:
        async with owned(script(source, protocol=protocol), GROWING) as it:
            await it.attempted.wait()

            def failed_often() -> bool:
                errors.add(it.last_error)
                retries.add(it.breaker.retry_at)
                return len(retries) > 3

            await wait_until(failed_often, 20)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(fail_several_times())
    assert errors == {error}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert [record.getMessage() for record in caplog.records if error in record.getMessage()]


@pytest.mark.parametrize(
    ("child", "error"),
    [
        (Stdio("no-such-program"), "the command 'no-such-program' cannot be started: No such file or directory"),
        (
            Stdio("true", cwd="/no/such/folder"),
            "the command 'true' cannot be started in the folder (cwd) '/no/such/folder': No such file or directory",
        ),
        (Stdio("/dev/null"), "the command '/dev/null' cannot be started: Permission denied"),
    ],
)
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": True})])  # as the worker
async def test_a_command_that_cannot_be_started_is_named(child: Stdio, error: str) -> None:
    async with owned(ServerSpec("lost", child)) as server:
        await asyncio.wait_for(server.attempted.wait(), 10)
        assert server.last_error == error


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


async def test_a_server_that_hangs_between_calls_is_started_anew() -> None:
    policy = replace(QUICK, relist_every=0.1, list_timeout=0.3)
    async with connected(speaking(TELLS_ITS_PID), policy) as server:
        pid = await pid_of(server)
        os.kill(pid, signal.SIGSTOP)
        await wait_until(lambda: server.generation >= 2 and ready(server), 20)
        assert await pid_of(server) != pid


async def test_a_server_that_is_busy_with_a_call_is_left_alone(tmp_path: Path) -> None:
    gate, says = tmp_path / "gate", f"open(request['params']['arguments']['wait']).read(); {TELLS_ITS_PID}"
    os.mkfifo(gate)
    async with connected(speaking(says), replace(QUICK, relist_every=0.1, list_timeout=0.2)) as server:
        call = asyncio.create_task(server.call("t", {"wait": str(gate)}, timeout_s=20))
        await wait_until(lambda: server.state is ServerState.FAILED)
        gate.write_text("")
        assert isinstance(await call, Answered)
        await wait_until(lambda: ready(server))
        assert server.generation == 1


@promise("few child servers start at the same time, and a silent one holds back the others for seconds only")
async def test_children_start_one_after_the_other_and_a_silent_one_is_not_waited_for(tmp_path: Path) -> None:
    log = tmp_path / "starts"
    logged = f"""
import time
log = open({str(log)!r}, "a", buffering=1)
log.write("begin\\n")
time.sleep(0.2)
log.write("end\\n")
"""

    def named(name: str, at_start: str = logged) -> ServerSpec:
        speaker = speaking("pass")
        assert isinstance(speaker.transport, Stdio)
        arguments = ("-c", f"{at_start}\n{speaker.transport.args[1]}")
        return replace(speaker, name=name, transport=replace(speaker.transport, args=arguments))

    specs = [named("one"), named("silent", "import time; time.sleep(600)"), named("two"), named("three")]
    servers = McpServers(specs, policy=replace(QUICK, starting_children=1, start_share=2.0))
    running = asyncio.create_task(servers.run())
    try:
        for name in ("one", "two", "three"):
            await wait_until(partial(ready, servers[name]), what=f"{name} ({servers[name].last_error})")
        assert [server.last_error for server in servers.values()] == [None] * len(specs)
        assert not servers["silent"].attempted.is_set()
        assert log.read_text().split() == ["begin", "end"] * 3
    finally:
        servers.stop()
        await running
