"""What a call means, whatever carries it: the same over each of the four transports, to old servers and new ones."""

import asyncio
import json
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, McpServer, NotSent, Rejected, TimedOut
from plugins_mcp.mcp.calls import MAX_PROGRESS_CHARS
from plugins_mcp.mcp.content import LEFT_OUT, MAX_BLOCKS, MAX_VALUES
from plugins_mcp.mcp.servers_file import parse_entry
from plugins_mcp.mcp.transport_options import kind_of
from tests.integration.servers import connected, tool_names
from tests.integration.servers.behaviours import answer, error, never
from tests.integration.servers.every_transport import TRANSPORTS, EveryTransport, count, finish, over, report
from tests.integration.servers.scripted import Behaviour, Request
from tests.marks import promise
from tests.support.certificates import make_certificates
from tests.support.waiting import wait_until

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


@asynccontextmanager
async def serving(transport: str, /, **tools: Behaviour) -> AsyncGenerator[tuple[EveryTransport, McpServer]]:
    """A server with these tools, and the worker's side of it, once it is connected."""
    async with over(transport, {"fine": answer, **tools}) as peer, reached(peer) as server:
        yield peer, server


@asynccontextmanager
async def reached(peer: EveryTransport, **entry: Any) -> AsyncGenerator[McpServer]:
    spec, ignored = parse_entry("scripted", peer.entry(**entry), {})
    assert not ignored
    async with connected(spec) as server:
        yield server


async def test_a_tool_is_listed_and_called_with_its_arguments(transport: str) -> None:
    arguments: dict[str, Any] = {
        "text": "Grüße 🦊 \u2028 \x00",
        "deep": [{"a": None, "b": 10**30, "c": 1.5e300}],
        "": {},
    }
    content = [{"type": "text", "text": "☃"}, {"type": "image", "data": "AAAA", "mimeType": "image/png"}]

    async def give(request: Request) -> None:
        await request.result({"content": content, "structuredContent": {"n": 10**30}, "resultType": "complete"})

    async with serving(transport, give=give) as (peer, server):
        assert tool_names(server) == ["fine", "give"]
        result = await server.call("give", arguments, timeout_s=10)
        assert isinstance(result, Answered)
        assert [block.model_dump()["type"] for block in result.result.content] == ["text", "image"]
        assert result.result.structured_content == {"n": 10**30}
        assert [call.params["arguments"] for call in peer.calls("give")] == [arguments]


async def test_a_result_that_breaks_the_schema_of_its_tool_is_an_answer_all_the_same(transport: str) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    async with over(transport, {"fine": answer}) as peer:
        peer.tools = [{"name": "fine", "inputSchema": {"type": "object"}, "outputSchema": schema}]
        async with reached(peer) as server:
            assert isinstance(await server.call("fine", {}, timeout_s=10), Answered)


def nonsense(**fields: Any) -> Behaviour:
    async def behave(request: Request) -> None:
        await request.respond(200, json.dumps({"jsonrpc": "2.0", "id": request.message["id"], **fields}).encode())

    return behave


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
@pytest.mark.parametrize(
    ("behaviour", "fate"),
    [
        (error(-32602, "Unknown tool: x"), Rejected(ErrorCode.TOOL_NOT_FOUND, "Unknown tool: x")),
        (error(-32602, "a is missing"), Rejected(ErrorCode.INVALID_ARGUMENTS, "a is missing")),
        (error(-32000, "Connection closed"), Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "Connection closed")),
        (error(-32001, "slow"), Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "slow")),
        (nonsense(result=None), Ambiguous),
        (nonsense(error="boo"), Ambiguous),
        (nonsense(x=1), Ambiguous),
        (nonsense(result={"content": 5}), Ambiguous),
    ],
    ids=[
        "unknown tool",
        "bad arguments",
        "as at an end",
        "as at a timeout",
        "null",
        "no error",
        "neither",
        "no content",
    ],
)
async def test_an_error_or_nonsense_of_a_server_ends_its_own_call_at_once_and_no_other(
    transport: str, behaviour: Behaviour, fate: CallResult | type[CallResult]
) -> None:
    async with serving(transport, odd=behaviour, slow=never) as (peer, server):
        neighbour = asyncio.create_task(server.call("slow", {}, timeout_s=30))
        slow = (await wait_until(lambda: peer.calls("slow")))[0]
        result = await server.call("odd", {}, timeout_s=20)
        assert isinstance(result, fate) if isinstance(fate, type) else result == fate
        assert isinstance(await server.call("fine", {}, timeout_s=10), Answered)
        assert not neighbour.done()
        neighbour.cancel()
        await peer.cancelled(slow)
        assert isinstance(fate, type) or server.generation == 1


async def test_progress_comes_in_order_and_before_the_answer(transport: str) -> None:
    async with serving(transport, count=count) as (_, server):
        seen: list[CallProgress] = []
        result = await server.call("count", {"to": 4}, timeout_s=20, on_progress=seen.append)
        assert isinstance(result, Answered)
        assert seen == [CallProgress(step, step, f"step {step}") for step in range(1, 5)]


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
async def test_progress_that_cannot_be_sent_on_is_made_to_fit_or_left_out(transport: str) -> None:
    async def babble(request: Request) -> None:
        await request.event_stream()
        for progress in (float("nan"), 10**400, "much", True):
            await report(request, progress=progress)
        await report(request, progress=1, progressToken="another call")
        await report(request, progress=1, total=float("inf"), message="x" * 5_000)
        await finish(request)

    async with serving(transport, babble=babble) as (_, server):
        seen: list[CallProgress] = []
        assert isinstance(await server.call("babble", {}, timeout_s=10, on_progress=seen.append), Answered)
        assert seen == [CallProgress(1, None, "x" * (MAX_PROGRESS_CHARS - 1) + "…")]


@promise("progress resets the idle limit, never the total")
async def test_progress_extends_the_idle_timeout_and_not_the_total(transport: str) -> None:
    async with over(transport, {"count": count}) as peer, reached(peer, callstream={"idleTimeoutMs": 1_000}) as server:
        assert isinstance(await server.call("count", {"to": 12}, timeout_s=20), Answered)
        assert await server.call("count", {"to": 1_000}, timeout_s=1.2) == TimedOut(sent=True)
        await peer.cancelled(peer.calls("count")[1])


async def test_the_idle_timeout_ends_a_call_and_cancels_it_at_the_server(transport: str) -> None:
    async with over(transport, {"slow": never}) as peer, reached(peer, callstream={"idleTimeoutMs": 300}) as server:
        assert await server.call("slow", {}, timeout_s=20) == TimedOut(sent=True, quiet_s=0.3)
        await peer.cancelled(peer.calls("slow")[0])


@promise("a lost MCP server is connected again")
async def test_a_connection_lost_during_a_call_leaves_its_outcome_open_and_the_next_call_is_answered(
    transport: str,
) -> None:
    async def cut(request: Request) -> None:
        await peer.cut(request)

    async with serving(transport, cut=cut) as (peer, server):
        assert isinstance(await server.call("cut", {}, timeout_s=20), Ambiguous)
        # The first may have been given to a connection whose end has not been noticed yet, and was not run then.
        results = [await server.call("fine", {}, timeout_s=20) for _ in range(2)]
        assert isinstance(results[0], Answered | NotSent)
        assert isinstance(results[1], Answered)
        assert len(peer.calls("cut")) == 1


@promise("an MCP server that talks nonsense, or too much, harms no other and no call but its own")
async def test_what_an_answer_has_beyond_the_limits_becomes_no_objects(transport: str) -> None:
    text = {"type": "text", "text": "a"}
    results: dict[str, dict[str, Any]] = {
        "blocks": {"content": [text] * (MAX_BLOCKS + 5)},
        "values": {"content": [text], "structuredContent": {"all": [0] * MAX_VALUES}},
        "names": {"content": [text], "structuredContent": {f"n{number}": 0 for number in range(MAX_VALUES // 2)}},
    }

    async def give(request: Request) -> None:
        result = {"resultType": "complete", **results[request.params["arguments"]["which"]]}
        if request.params["arguments"].get("events"):
            await request.event_stream()
            await request.event(request.envelope(result=result))
        else:
            await request.result(result)

    async with serving(transport, give=give) as (_, server):
        # Over the other two an event is what an answer is.
        for events in (False, True) if transport in ("stateless", "session") else (False,):
            many = await server.call("give", {"which": "blocks", "events": events}, timeout_s=30)
            assert isinstance(many, Answered)
            assert len(many.result.content) == MAX_BLOCKS
            assert many.result.meta == {LEFT_OUT: 5}
            for which in ("values", "names"):
                assert await server.call("give", {"which": which, "events": events}, timeout_s=30) == Ambiguous(
                    "Failed to parse the answer: it has more than 300,000 values"
                )


# Options.

Effect = tuple[dict[str, Any], Callable[[Request], bool]]
"""The option in `mcp.json`, and what each request shows then; of a child process, how it was started."""


def effect_of(option: str, peer: EveryTransport, folder: Path) -> Effect:
    entry = peer.entry()
    match option:
        case "command":
            return {}, lambda seen: seen.method == "started"
        case "args":
            return {"args": [*entry["args"], "more"]}, lambda seen: seen.params["args"] == ["more"]
        case "env":
            return {"env": {"OPTION": "on"}}, lambda seen: seen.params["env"]["OPTION"] == "on"
        case "cwd":
            return {"cwd": str(folder)}, lambda seen: Path(seen.params["cwd"]) == folder.resolve()
        case "url":
            return {"url": f"{entry['url']}&option=on"}, lambda seen: "option=on" in seen.headers[":path"]
        case "headers":
            return {"headers": {"X-Option": "on"}}, lambda seen: seen.headers.get("x-option") == "on"
        case "ca_file":
            files = make_certificates(folder)
            peer.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            peer.tls.load_cert_chain(files.server, files.server_key)
            return {"url": peer.url, "caFile": str(files.ca)}, lambda seen: True
        case _:
            pytest.fail(f"the option {option!r} of a transport has no test of its effect here")


async def test_each_option_has_its_effect_on_everything_that_is_sent(transport: str, tmp_path: Path) -> None:
    async with over(transport, {"fine": answer}) as peer:
        for option in fields(kind_of(peer.entry())):
            entry, shows = effect_of(option.name, peer, tmp_path)
            await peer.stop()
            await peer.start()
            peer.requests.clear()
            async with reached(peer, **entry) as server:
                assert isinstance(await server.call("fine", {}, timeout_s=10), Answered)
            sent = peer.requests[:1] if transport == "stdio" else peer.requests
            assert sent
            assert [seen.headers for seen in sent if not shows(seen)] == [], option.name
