"""Answers of a hostile MCP server, as a child process and over HTTP: results, listings, progress, requests of its own.

A call has a result or a named failure in time, which can be stored; afterwards the same server can be used again.
"""

import json
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins_contract.encryption import CLEAR
from plugins_contract.ledger import decode_reply, encode_reply
from plugins_contract.outcomes import CallFinished, CallProgress, TextBlock
from plugins_mcp.mcp import Answered, McpServer, ServerOptions, ServerSpec, Stdio, to_outcome
from tests.fuzz.limits import CONNECTED, TIMES, Attempt, watched
from tests.fuzz.mutations import changed_bytes, changed_json, written
from tests.integration.servers import QUICK, connected, remote
from tests.integration.servers.scripted import LEGACY, MODERN, Request, ScriptedServer, scripted
from tests.marks import promise
from tests.support.waiting import wait_until

Json = dict[str, Any]

CALL_SECONDS = 2.0
POLICY = replace(QUICK, relist_every=0.2, list_timeout=2.0, failure_threshold=1_000)
CHILD = """
import base64, json, sys
tools = [{"name": "t", "inputSchema": {"type": "object"}}]
for line in sys.stdin:
    request = json.loads(line)
    number, params = request.get("id"), request.get("params") or {}
    match request.get("method"):
        case "initialize":
            info = {"name": "hostile", "version": "1"}
            result = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            result = {"tools": tools}
        case "tools/call":
            told = params["arguments"]
            tools = json.loads(told.get("tools", "null")) or tools
            data = base64.b64decode(told.get("says", "")).replace(b'"@id"', json.dumps(number).encode())
            token = (params.get("_meta") or {}).get("progressToken")
            sys.stdout.buffer.write(data.replace(b'"@token"', json.dumps(token).encode()))
            result = {"content": [{"type": "text", "text": "right"}]}
        case _:
            continue
    print(json.dumps({"jsonrpc": "2.0", "id": number, "result": result}), flush=True)
"""
TOOL: Json = {
    "name": "t",
    "title": "T",
    "description": "d",
    "inputSchema": {"type": "object", "properties": {"a": {"type": "string", "pattern": "^a"}}, "required": []},
    "outputSchema": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "$defs": {"b": {"type": "integer"}}},
    "annotations": {"readOnlyHint": True, "destructiveHint": False, "title": "T"},
    "_meta": {"a": 1},
}
CONTENT: tuple[Json, ...] = (
    {"type": "text", "text": "right", "annotations": {"audience": ["user"], "priority": 0.5}},
    {"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"},
    {"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav", "_meta": {}},
    {"type": "resource_link", "uri": "file:///a", "name": "a", "size": 5, "mimeType": "text/plain"},
    {"type": "resource", "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "hello"}},
    {"type": "resource", "resource": {"uri": "file:///a", "blob": "aGVsbG8="}},
)
MESSAGES: tuple[Json, ...] = (
    {
        "method": "notifications/progress",
        "params": {"progressToken": "@token", "progress": 1, "total": 2, "message": "m"},
    },
    {"method": "notifications/tools/list_changed"},
    {"method": "notifications/message", "params": {"level": "error", "logger": "x", "data": {"a": 1}}},
    {"method": "notifications/cancelled", "params": {"requestId": "@id", "reason": "r"}},
    {"method": "sampling/createMessage", "id": 7, "params": {"messages": [], "maxTokens": 5}},
    {"method": "elicitation/create", "id": 8, "params": {"message": "key?", "requestedSchema": {"type": "object"}}},
    {"method": "roots/list", "id": 9},
    {"method": "ping", "id": "@id"},
    {"id": 99_999, "result": {}},
    {"id": "@id", "error": {"code": -32603, "message": "broken", "data": {"a": [1]}}},
    {"id": "@id", "error": {"code": -32601, "message": "none"}},
)


@promise("hostile input of any side gives a named error, and others are served")
@settings(CONNECTED, max_examples=20 * TIMES)
@given(random=st.randoms(use_true_random=True))
async def test_any_answer_is_a_result_or_a_failure_and_the_server_stays_usable(
    mcp_servers: Attempt, random: Random
) -> None:
    async with watched():
        await mcp_servers(random)


@pytest.fixture(scope="module")
async def mcp_servers() -> AsyncGenerator[Attempt]:
    """Three servers, of which each attempt uses one: a child process, and HTTP in both eras of the protocol."""
    async with AsyncExitStack() as stack:
        child = ServerSpec("child", Stdio(sys.executable, ("-c", CHILD)), ServerOptions(protocol="legacy"))
        servers: list[tuple[McpServer, ScriptedServer | None]]
        servers = [(await stack.enter_async_context(connected(child, POLICY)), None)]
        for era in (MODERN, LEGACY):
            peer = await stack.enter_async_context(scripted(era, t=_right))
            peer.keep_requests = False
            servers.append((await stack.enter_async_context(connected(remote(peer.url), POLICY)), peer))

        async def attempt(random: Random) -> None:
            server, peer = random.choice(servers)
            tools: Any = (
                [changed_json(TOOL, random) for _ in range(random.randint(1, 3))] if random.random() < 0.2 else None
            )
            await (_over_http(server, peer, tools, random) if peer else _by_child(server, tools, random))

        yield attempt


async def _by_child(server: McpServer, tools: list[Json] | None, random: Random) -> None:
    says = b"".join(_message(random) + random.choice([b"\n", b"\n", b"\r\n", b""]) for _ in range(random.randint(1, 4)))
    for _ in range(random.choice([0, 0, 1, 2])):
        says = changed_bytes(says, random)
    arguments: Json = {"says": b64encode(says + b"\n").decode()}
    await _call(server, arguments | ({} if tools is None else {"tools": json.dumps(tools)}))
    await _usable(server, {"tools": json.dumps([{"name": "t", "inputSchema": {"type": "object"}}])})


async def _over_http(server: McpServer, peer: ScriptedServer, tools: list[Json] | None, random: Random) -> None:
    messages = [_message(random) for _ in range(random.randint(1, 4))]
    stream = random.random() < 0.5
    body = b"".join(b"event: message\ndata: %b\n\n" % each for each in messages) if stream else messages[-1]
    for _ in range(random.choice([0, 0, 1, 2])):
        body = changed_bytes(body, random)
    status = random.choice([200, 200, 200, 200, 202, 204, 302, 400, 401, 404, 429, 500, 503])
    kind = random.choice(["text/event-stream" if stream else "application/json"] * 4 + ["text/html", "", "x"])

    async def hostile(request: Request) -> None:
        number = json.dumps(request.message.get("id")).encode()
        token = json.dumps((request.params.get("_meta") or {}).get("progressToken")).encode()
        await request.respond(status, body.replace(b'"@id"', number).replace(b'"@token"', token), kind)

    peer.behaviours["t"] = hostile
    if tools is not None:
        peer.tools = tools
    await _call(server, {})
    peer.behaviours["t"] = _right
    peer.tools = []
    await _usable(server, {})


async def _right(request: Request) -> None:
    await request.text("right")


async def _call(server: McpServer, arguments: Json) -> None:
    progress: list[CallProgress] = []
    # Approved: a listing that says "destructive" would have the worker ask a person, and nothing would be read.
    result = await server.call("t", arguments, timeout_s=CALL_SECONDS, on_progress=progress.append, approved=True)
    for report in progress:
        assert decode_reply(encode_reply(report), cipher=CLEAR) == report
    if isinstance(result, Answered):
        finished = CallFinished(to_outcome(result.result))
        assert decode_reply(encode_reply(finished), cipher=CLEAR) == finished


async def _usable(server: McpServer, arguments: Json) -> None:
    """A right answer is read again, though perhaps not at once: the connection may have been lost.

    It is called in any state: with an open circuit the next call is the probe that closes it.
    """

    async def answered() -> bool:
        result = await server.call("t", arguments, timeout_s=CALL_SECONDS, approved=True)
        return isinstance(result, Answered) and to_outcome(result.result).content == (TextBlock("right"),)

    await wait_until(answered, 30, what=f"a right answer ({server.last_error})")


def _message(random: Random) -> bytes:
    if random.random() < 0.6:
        content = random.choices(CONTENT, k=random.randint(0, 3))
        result: Json = {"content": content, "resultType": "complete", "isError": random.random() < 0.2}
        if random.random() < 0.3:
            result["structuredContent"] = {"result": [1, {"a": "b"}]}
        message: Json = {"id": "@id", "result": result}
    else:
        message = random.choice(MESSAGES)
    changed: object = {"jsonrpc": "2.0", **message}
    for _ in range(random.choice([0, 1, 1, 2])):
        changed = changed_json(changed, random)
    return written(changed, random).replace(b"\n", b" ")
