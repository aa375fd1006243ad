"""The limits of a call: the total, how long it may go without a word, and how much its answer may hold."""

import asyncio
import gzip
import json
from pathlib import Path

import pytest

from plugins_contract.catalog import ServerState
from plugins_mcp.mcp import Ambiguous, Answered, TimedOut, ToolOptions
from plugins_mcp.mcp.content import MAX_BLOCKS, MAX_VALUES
from plugins_mcp.mcp.dispatcher import MAX_UNANSWERED
from plugins_mcp.mcp.listing import LEFT_OUT, MAX_ARGUMENTS, MAX_PER_PAGE, bound_page
from plugins_mcp.mcp.server_status import MAX_REASON
from tests.integration.servers import connected, owned, remote, script, speaking
from tests.integration.servers.behaviours import never
from tests.integration.servers.scripted import LEGACY, MODERN, Request, scripted
from tests.support.longest_turn import short_turns
from tests.support.waiting import wait_until


async def test_a_tool_has_its_own_idle_limit() -> None:
    tools = {"hang": ToolOptions(idle_timeout_ms=200)}
    async with scripted(hang=never) as peer, connected(remote(peer.url, idle_timeout_ms=30_000, tools=tools)) as server:
        assert await server.call("hang", {}, timeout_s=20) == TimedOut(sent=True, quiet_s=0.2)


TEXT = {"type": "text", "text": "a"}


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_an_answer_of_many_values_stalls_nobody(kind: str) -> None:
    async def answer(request: Request) -> None:
        data = body.replace(b"7777", b"%4d" % request.message["id"])
        if kind == "text/event-stream":
            data = b"data: %b\n\n" % data
        await request.raw(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\n" % kind.encode())
        await request.raw(b"content-length: %d\r\n\r\n" % len(data))
        await request.raw(data)

    text = json.dumps([TEXT] * (MAX_VALUES // 6))
    body = f'{{"jsonrpc": "2.0", "id": 7777, "result": {{"content": {text}}}}}'.encode()
    async with scripted(LEGACY, t=answer) as peer, connected(remote(peer.url)) as server, short_turns():
        result = await server.call("t", {}, timeout_s=20)
        assert isinstance(result, Answered)
        assert len(result.result.content) == MAX_BLOCKS


async def test_a_long_answer_that_cannot_be_read_ends_its_call_at_once() -> None:
    async def answer(request: Request) -> None:
        await request.raw(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 200000\r\n\r\n")
        await request.raw(b"[" * 200_000)

    async with scripted(LEGACY, t=answer) as peer, connected(remote(peer.url)) as server, asyncio.timeout(10):
        assert isinstance(await server.call("t", {}, timeout_s=60), Ambiguous)


async def test_many_lines_that_have_arrived_already_stall_nobody() -> None:
    note = '{"jsonrpc": "2.0", "method": "x"}'
    lines = f"import sys; sys.stdout.write('x' * 5_000_000 + '\\n' + '{note}\\n' * 2_500)"
    async with connected(speaking(f"{lines}\nsay(request, {{'content': []}})")) as server, short_turns():
        assert isinstance(await server.call("t", {}, timeout_s=20), Answered)


PINGING = """
print("\\n".join('{"jsonrpc": "2.0", "id": %d, "method": "ping"}' % number for number in range(5_000)))
time.sleep(60)
"""


@pytest.mark.parametrize(("transport", "timeout", "kind"), [("stdio", 1, TimedOut), ("session", 60, Answered)])
async def test_a_flood_of_requests_of_a_server_is_read_as_fast_as_it_takes_the_answers(
    transport: str, timeout: float, kind: type[object]
) -> None:
    async def answer(request: Request) -> None:
        await request.event_stream()
        for number in range(3 * MAX_UNANSWERED):
            await request.event(b'{"jsonrpc": "2.0", "id": %d, "method": "ping"}' % number)
        await request.event(request.envelope(result={"content": []}))

    async def count_tasks() -> None:
        while True:
            counts.append(len(asyncio.all_tasks()))
            await asyncio.sleep(0)

    counts: list[int] = []
    async with (
        scripted(LEGACY, t=answer) as peer,
        connected(speaking(PINGING) if transport == "stdio" else remote(peer.url)) as server,
    ):
        counting = asyncio.create_task(count_tasks())
        assert isinstance(await server.call("t", {}, timeout_s=timeout), kind)
        counting.cancel()
    assert max(counts) < 2 * MAX_UNANSWERED


@pytest.mark.parametrize("id_first", [True, False])
@pytest.mark.parametrize("beside", ["[]", "[0" + ",0" * MAX_VALUES + "]"])
async def test_a_very_deep_answer_ends_its_call_at_once(*, id_first: bool, beside: str, tmp_path: Path) -> None:
    fields = ['"jsonrpc": "2.0", "id": %d', f'"result": {{"a": {"[" * 100_000 + "]" * 100_000}, "b": {beside}}}']
    answer = tmp_path / "answer.json"
    answer.write_text("{" + ", ".join(fields if id_first else reversed(fields)) + "}")
    async with connected(speaking(f"print(open({str(answer)!r}).read() % request['id'], flush=True)")) as server:
        result = await server.call("t", {}, timeout_s=20)
        assert isinstance(result, Ambiguous)
        assert result.reason.startswith("Failed to parse the answer: it ")


@pytest.mark.parametrize(("era", "kind"), [(MODERN, "application/json"), (LEGACY, "text/event-stream")])
async def test_a_small_answer_that_unpacks_to_many_megabytes_is_unpacked_in_steps(era: str, kind: str) -> None:
    packed = gzip.compress(b"data: " + bytes(100_000_000))

    async def answer(request: Request) -> None:
        await request.respond(200, packed, kind, content_encoding="gzip")

    async with scripted(era, t=answer) as peer, connected(remote(peer.url)) as server, short_turns():
        assert isinstance(await server.call("t", {}, timeout_s=30), Ambiguous)


TALKATIVE = """
import json, sys

pages = 0
for line in sys.stdin:
    request = json.loads(line)
    match request["method"]:
        case "initialize":
            info = {"name": "s", "version": "1", "icons": [{"src": "x"}] * 90_000}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            pages += 1
            tools = [{"name": f"t{pages}-{n}", "description": "d" * 40_000} for n in range(300)]
            result = {"tools": [tool | {"inputSchema": {"type": "object"}} for tool in tools], "nextCursor": str(pages)}
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""


async def test_a_server_that_introduces_itself_and_lists_at_length_is_cut_and_stalls_nobody() -> None:
    """100 pages of 30 MB were read: the worker had 750 MB after 15 s. Icons stalled it for 0.4 s."""
    async with short_turns(), connected(script(TALKATIVE, protocol="legacy")) as server:
        assert server.catalog
        assert len(server.catalog.tools) == 600
        assert server.catalog.quarantined[0].reason == "the server lists too much: only the first 2 pages were read"


async def test_a_long_error_is_cut_in_the_log_and_for_users(caplog: pytest.LogCaptureFixture) -> None:
    """20 MB of it were logged, shown by the worker's readiness, and written to Redis with each heartbeat."""
    refuse = "import json; request = json.loads(input()); error = {'code': -1, 'message': 'no' * 10_000_000}"
    say = "print(json.dumps({'jsonrpc': '2.0', 'id': request['id'], 'error': error}), flush=True)"
    async with owned(script(f"{refuse}; {say}; input()", protocol="legacy")) as server, short_turns():
        await wait_until(lambda: server.state is ServerState.FAILED)
        assert (server.last_error or "").startswith("nono")
        assert len(server.last_error or "") <= MAX_REASON
        assert max(len(each.getMessage()) for each in caplog.records) < 3 * MAX_REASON


def test_the_sdk_is_given_what_is_read_of_a_page_only() -> None:
    prompt = {"name": "p", "icons": [{"src": "x"}], "arguments": [{"name": "a"}] * (MAX_ARGUMENTS + 1)}
    page = {"prompts": [prompt] * (MAX_PER_PAGE + 1), "_meta": {"a": "b" * 1_000}, "nextCursor": "2"}
    assert bound_page(page) > 1_000
    reduced = {"name": "p", "arguments": [{"name": "a"}] * MAX_ARGUMENTS}
    left_out = {LEFT_OUT: 1}
    assert page == {"prompts": [reduced] * MAX_PER_PAGE, "nextCursor": "2", "_meta": left_out}
