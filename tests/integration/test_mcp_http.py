"""Calls over HTTP: what each kind of answer and each kind of failure says about the call, and about its neighbours."""

import asyncio
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client

from plugins_contract.catalog import ServerState
from plugins_contract.errors import ErrorCode
from plugins_contract.questions import NextRound
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent, Rejected, TimedOut
from plugins_mcp.mcp.calls import SendState
from plugins_mcp.mcp.dispatcher import TransportListener
from plugins_mcp.mcp.http_streams import open_http
from plugins_mcp.mcp.transport_options import Http
from tests.integration.servers import QUICK, connected, owned, ready, remote, tool_names
from tests.integration.servers.behaviours import FATES, answer, error, never, status
from tests.integration.servers.scripted import LEGACY, MODERN, Behaviour, Request, ScriptedServer, scripted
from tests.marks import promise
from tests.support.waiting import wait_until

ERAS = [MODERN, LEGACY]


class Ignored(TransportListener):
    """Listens to nothing."""

    def lost(self) -> None: ...

    async def result(self, result: dict[str, Any]) -> None: ...


@pytest.mark.parametrize("era", ERAS)
@pytest.mark.parametrize(("behaviour", "fate"), [case[1:] for case in FATES], ids=[case[0] for case in FATES])
async def test_each_answer_decides_its_own_call_only(
    era: str, behaviour: Behaviour, fate: CallResult | type[CallResult]
) -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> None:
        await release.wait()
        await request.text("at last")

    async with scripted(era, odd=behaviour, slow=slow) as peer, connected(remote(peer.url)) as server:
        neighbour = asyncio.create_task(server.call("slow", {}, timeout_s=20))
        await wait_until(lambda: peer.calls("slow"))

        result = await server.call("odd", {}, timeout_s=20)

        assert result == fate if not isinstance(fate, type) else isinstance(result, fate)
        assert len(peer.calls("odd")) == 1
        release.set()
        assert isinstance(await neighbour, Answered)
        assert server.generation == 1


async def test_after_a_failed_connect_the_next_calls_wait_for_the_server() -> None:
    async with scripted(tool=answer) as peer, connected(remote(peer.url), replace(QUICK, call_wait=20.0)) as server:
        await peer.stop()
        assert isinstance(await server.call("tool", {}, timeout_s=5), NotSent)
        calls = [asyncio.create_task(server.call("tool", {}, timeout_s=20)) for _ in range(3)]
        await wait_until(lambda: server.state is ServerState.FAILED)
        assert not any(call.done() for call in calls)
        await peer.start()
        assert all(isinstance(result, Answered) for result in await asyncio.gather(*calls))


@promise("a lost MCP server is connected again")
async def test_a_server_that_comes_up_later_is_connected_then() -> None:
    peer = ScriptedServer(behaviours={"tool": answer})
    await peer.start()
    await peer.stop()
    async with owned(remote(peer.url), replace(QUICK, call_wait=0.0)) as server:
        await server.attempted.wait()
        assert server.state is ServerState.FAILED
        assert isinstance(await server.call("tool", {}, timeout_s=5), NotSent)
        await peer.start()
        await wait_until(lambda: ready(server))
        assert isinstance(await server.call("tool", {}, timeout_s=5), Answered)
    await peer.stop()


@pytest.mark.parametrize("code", [401, 403, 503])
async def test_a_server_that_refuses_the_handshake_is_asked_again(code: int) -> None:
    async with scripted(tool=answer) as peer:
        peer.behaviours["server/discover"] = peer.behaviours["initialize"] = status(code)
        async with owned(remote(peer.url)) as server:
            await server.attempted.wait()
            assert server.state is ServerState.FAILED
            assert (server.last_error or "").startswith(f"HTTP {code}")
            del peer.behaviours["server/discover"], peer.behaviours["initialize"]
            await wait_until(lambda: ready(server))


async def test_a_lost_session_does_not_take_the_answers_that_are_still_coming() -> None:
    release = asyncio.Event()

    async def slow(request: Request) -> None:
        await release.wait()
        await request.text("at last")

    policy = replace(QUICK, drain_timeout=10.0)
    async with scripted(LEGACY, tool=answer, slow=slow) as peer, connected(remote(peer.url), policy) as server:
        call = asyncio.create_task(server.call("slow", {}, timeout_s=20))
        await wait_until(lambda: peer.calls("slow"))
        peer.session += 1
        assert isinstance(await server.call("tool", {}, timeout_s=5), NotSent)
        next_call = asyncio.create_task(server.call("tool", {}, timeout_s=20))
        release.set()
        assert isinstance(await call, Answered)
        assert isinstance(await next_call, Answered)
        assert server.generation == 2


async def test_a_call_that_a_lost_session_takes_along_has_an_open_outcome() -> None:
    policy = replace(QUICK, drain_timeout=0.05)
    async with scripted(LEGACY, tool=answer, slow=never) as peer, connected(remote(peer.url), policy) as server:
        call = asyncio.create_task(server.call("slow", {}, timeout_s=20))
        await wait_until(lambda: peer.calls("slow"))
        peer.session += 1
        assert isinstance(await server.call("tool", {}, timeout_s=5), NotSent)
        assert await call == Ambiguous("the connection was lost during the call")


async def test_a_notification_that_is_never_answered_does_not_block_the_calls() -> None:
    async with (
        scripted(LEGACY, slow=never, tool=answer) as peer,
        open_http(Http(peer.url), Ignored(), notification_seconds=0.2) as connection,
        Client(nullcontext(connection.streams), mode="legacy", cache=None) as client,
    ):
        peer.behaviours["notifications/cancelled"] = never
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await client.call_tool("slow", {})
        async with asyncio.timeout(5):
            await client.call_tool("tool", {})


@pytest.mark.parametrize("era", ERAS)
async def test_time_that_passes_before_the_connection_stands_means_not_sent(era: str) -> None:
    async with scripted(era, tool=answer) as peer, connected(remote(peer.url)) as server:
        hung = asyncio.Event()

        async def never_connect(*args: object, **kwargs: object) -> None:
            hung.set()
            await asyncio.Event().wait()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aiohttp.TCPConnector.connect", never_connect)
            await drop_idle_connections(peer)
            assert await server.call("tool", {}, timeout_s=0.5) == TimedOut(sent=False)
            assert hung.is_set()
        assert peer.calls("tool") == []


async def drop_idle_connections(peer: ScriptedServer) -> None:
    await peer.stop()
    await peer.start()


async def test_headers_are_sent_and_secrets_are_redacted() -> None:
    async def leak(request: Request) -> None:
        await request.error(-32000, f"no: {request.headers['authorization']} {request.headers[':path']}")

    async with scripted(tool=leak) as peer:
        spec = remote(peer.url, headers={"Authorization": "Bearer top-secret"})
        spec = replace(spec, secrets=frozenset({"Bearer top-secret", "top-secret", "secret-in-url"}))
        async with connected(spec) as server:
            result = await server.call("tool", {}, timeout_s=5)
            assert result == Rejected(ErrorCode.TOOL_EXECUTION_FAILED, "no: *** /mcp?key=***")
            assert "secret" not in repr(spec)


async def test_all_pages_are_listed_and_malformed_tools_are_set_aside() -> None:
    async with scripted() as peer:
        peer.page = 2
        proper = {"type": "object"}
        peer.tools = [
            {"name": "one", "inputSchema": proper, "outputSchema": {"type": "object", "$ref": "http://example.com"}},
            {"name": "no schema"},
            {"name": "two", "inputSchema": proper},
            {"name": "of another type", "inputSchema": {"type": "string"}},
            {"name": "three", "inputSchema": proper},
            "not a tool",
        ]
        async with connected(remote(peer.url)) as server:
            assert tool_names(server) == ["one", "three", "two"]
            assert server.catalog is not None
            assert [tool.tool for tool in server.catalog.quarantined] == ["no schema", "of another type", "None"]


async def test_a_listing_without_an_end_ends() -> None:
    async def same_page(request: Request) -> None:
        more = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        await request.result({"tools": list[Any](), "nextCursor": "again", **more})

    async with scripted() as peer:
        peer.behaviours["tools/list"] = same_page
        async with connected(remote(peer.url)) as server:
            assert tool_names(server) == []
            assert peer.methods().count("tools/list") == 2


async def test_an_answer_followed_by_a_failed_listing_is_not_called_a_refusal() -> None:
    async with scripted(tool=answer) as peer, connected(remote(peer.url)) as server:
        # A tool that was never listed makes the SDK ask for the listing after the answer.
        peer.behaviours["unlisted"] = answer
        peer.behaviours["tools/list"] = error(-32601, "no listing today")
        assert isinstance(await server.call("unlisted", {}, timeout_s=5), Ambiguous)


async def test_a_refusal_after_the_server_had_begun_is_not_called_unsent() -> None:
    async def begin(request: Request) -> None:
        if len(peer.calls("tool")) == 1:
            await request.result({"resultType": "input_required", "requestState": "half done"})
        else:
            await request.respond(503, kind="")

    async with scripted(tool=begin) as peer, connected(remote(peer.url)) as server:
        assert isinstance(await server.call("tool", {}, timeout_s=5), Ambiguous)
        assert len(peer.calls("tool")) == 2


@promise("a server's state is sent at most once")
@pytest.mark.parametrize("number", [1, 2])
async def test_a_state_is_not_sent_again_with_other_header_fields(number: int) -> None:
    async def insist(request: Request) -> None:
        if len(peer.calls("tool")) < number:
            await request.result({"resultType": "input_required", "requestState": "half done"})
        else:
            await request.error(-32020, "Header mismatch", 400)

    brings = SendState(next_round=NextRound(2, {}, "half done") if number == 1 else None)
    async with scripted(tool=insist) as peer, connected(remote(peer.url)) as server:
        result = await server.call("tool", {}, timeout_s=5, send_state=brings)
        assert isinstance(result, Rejected)
        assert len(peer.calls("tool")) == number


@promise("a server that asks again without end, or too much at once, is refused")
async def test_a_server_that_asks_without_end_is_refused() -> None:
    async def more(request: Request) -> None:
        await request.result({"resultType": "input_required", "requestState": "not yet"})

    async with scripted(tool=more) as peer, connected(remote(peer.url)) as server:
        result = await server.call("tool", {}, timeout_s=20)
        assert isinstance(result, Rejected)
        assert result.code is ErrorCode.INPUT_REFUSED
        assert len(peer.calls("tool")) == 11
