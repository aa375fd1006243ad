"""Calls of child processes by `LineDispatcher`, compared with the same calls through the SDK's transport.

The SDK is the oracle: the outcome of a call, what it reports, and what the child receives must be the same.
"""

import asyncio
import gc
import json
import os
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import pytest
from mcp.types import CLIENT_CAPABILITIES_META_KEY

from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp import Ambiguous, Answered, CallResult, NotSent
from plugins_mcp.mcp.calls import SendState
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES
from plugins_mcp.mcp.session import Session
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stdio import TERMINATE_SECONDS, ChildDiagnostics
from plugins_mcp.mcp.transport_options import Stdio
from plugins_mcp.mcp.watched import Updates, Watched
from tests.integration.servers import script
from tests.support.waiting import wait_until

ERAS = ["auto", "legacy"]
LOOPS = ["asyncio", "uvloop"]
"""They notice closed pipes at different times. The worker runs on uvloop."""

CLOSE_INPUT = "os.close(0); os.closerange(3, 256)"  # uvloop gives the child a second descriptor of each pipe


@pytest.fixture
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    return "asyncio", {"use_uvloop": getattr(request, "param", None) == "uvloop"}


PEER = """
import json, os, sys, time

FINE = {"content": [{"type": "text", "text": "fine"}], "resultType": "complete"}
SCHEMA = {"type": "object"}
ABOUT = {"name": "peer", "version": "1"}
CACHED = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}

trace = open(os.environ["TRACE"], "ab", buffering=0)

def put(data):
    sys.stdout.buffer.write(data)
    sys.stdout.flush()

def send(**message):
    put(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\\n")

def answer(result=FINE, **fields):
    send(**{"id": request["id"], "result": {**result, **fields}})

def error(code, message, **fields):
    send(id=request["id"], error={"code": code, "message": message, **fields})

def report(**fields):
    params = {"progressToken": request["params"]["_meta"]["progressToken"], **fields}
    send(method="notifications/progress", params=params)

def read():
    line = sys.stdin.buffer.readline()
    trace.write(line)
    return json.loads(line) if line else sys.exit()

while True:
    request = read()
    match request["method"]:
        case "server/discover":
            answer(CACHED, supportedVersions=["2026-07-28"], capabilities={"tools": {}}, serverInfo=ABOUT)
        case "initialize":
            answer({}, protocolVersion="2025-11-25", capabilities={"tools": {}}, serverInfo=ABOUT)
        case "tools/list":
            answer(CACHED, tools=[{"name": "t", "inputSchema": SCHEMA}])
        case "tools/call":
            exec(request["params"]["arguments"]["run"])
"""

CONTENT: list[dict[str, Any]] = [
    {"type": "text", "text": "a \u2028 ☃", "annotations": {"audience": ["user"]}},
    {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    {"type": "resource_link", "uri": "file:///x", "name": "x"},
    {"type": "resource", "resource": {"uri": "file:///y", "text": "y"}},
]
ANSWERS = {
    "text": "answer()",
    "every kind of content": f"answer(content={CONTENT}, structuredContent={{'n': 10**30, 'f': 1e300}}, _meta={{}})",
    "failure": "answer(isError=True)",
    "unknown fields": "answer(of_tomorrow=1)",
    "id as text": 'send(id=str(request["id"]), result=FINE)',
    "id as float": 'send(id=float(request["id"]), result=FINE); answer(isError=True)',
    "wrong ids": "for each in (True, None, [], 7, 'x', request['id'] + 1): send(id=each, result={})\nanswer()",
    "twice": "answer(); answer(isError=True)",
    "error": "error(-32602, 'bad argument')",
    "error with data": "error(-32000, 'busy', data={'a': [1]})",
    "error as at the end of a connection": "error(-32000, 'Connection closed')",
    "error without an id": "send(id=None, error={'code': -32700, 'message': 'what?'}); answer()",
    "unknown method": "error(-32601, 'Method not found')",
    "unknown tool": "error(-32602, 'Unknown tool: t')",
    "header mismatch": "error(-32020, 'Header mismatch')",
    "answer without a result": "send(id=request['id'])",
    "result is null": "send(id=request['id'], result=None)",
    "result is a list": "send(id=request['id'], result=[])",
    "error is a text": "send(id=request['id'], error='boo')",
    "result and error": "send(id=request['id'], result=FINE, error={'code': 1, 'message': 'both'})",
    "result without content": "send(id=request['id'], result={})",
    "content is a number": "answer(content=5)",
    "structured content is a list": "answer(structuredContent=[1])",
    "another version of JSON-RPC": "send(jsonrpc='1.0', id=request['id'], result=FINE)",
    "without a version of JSON-RPC": """put(b'{"id": %d, "result": {}}\\n' % request["id"]); answer()""",
    "the request itself": "send(**request); read(); answer()",
    "a batch": "put(json.dumps([{'jsonrpc': '2.0', 'id': request['id'], 'result': FINE}]).encode() + b'\\n'); answer()",
    "not JSON": "put(b'hello\\n\\n{\\n\\xff\\xfe\\n'); answer()",
    "CRLF and spaces": """put(b' {"jsonrpc":"2.0" , "id": %d,"result":{"content":[]}} \\r\\n' % request['id'])""",
    "in pieces": """
for byte in b'{"jsonrpc": "2.0", "id": %d, "result": {"content": []}}\\n' % request["id"]:
    put(bytes([byte]))
""",
    "half a character": """
put(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\\\ud83d"}]}}\\n' % request["id"])
""",
    "bytes that are no text": """
put(b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"\\xf0\\x9f"}]}}\\n' % request["id"])
""",
    "progress": """
report(progress=1, total=3, message="one")
report(progress=2.5)
report(progress="much")
report(progress=True)
report(progress=3, total="x", message=7)
report(progress=4, progressToken=str(request["id"]))
report(progress=5, progressToken="another call")
report(progress=6, progressToken=[])
report(progress=7, total=True)
report(progress=float("nan"))
send(method="notifications/progress")
report(progress=8, message="x" * 5000)
answer()
report(progress=9)
""",
    "notifications": """
send(method="notifications/tools/list_changed")
send(method="notifications/message", params={"level": "info", "data": 1})
send(method="notifications/of-tomorrow", params={})
send(method="notifications/cancelled", params={"requestId": request["id"]})
answer()
""",
    "requests to the client": """
form = {"message": "Sure?", "requestedSchema": {"type": "object", "properties": {}}}
for asked in ("ping", "roots/list", "elicitation/create", "of/tomorrow", "tools/call"):
    send(id=asked, method=asked, params=form if "elicit" in asked else {})
    read()
send(id=request["id"], method="ping")
read()
answer()
""",
    "again with a state": """
if "requestState" in request["params"]:
    answer(structuredContent={"state": request["params"]["requestState"]})
else:
    send(id=request["id"], result={"resultType": "input_required", "requestState": "half done"})
""",
}
"""What the child does when it is called, and goes on."""

ENDS = {
    "dies before the answer": "os._exit(3)",
    "dies within the answer": """put(b'{"jsonrpc": "2.0", "id": %d, "res' % request["id"]); os._exit(3)""",
    "dies after an answer without its line end": """put(b'{"jsonrpc":"2.0","id":%d,"result":{}}' % request["id"])
os._exit(3)""",
    "dies after the answer": "answer(); os._exit(0)",
    "closes its output": "os.close(1); read()",
    "answers too much": f"answer(content=[{{'type': 'text', 'text': 'x' * {MAX_ANSWER_BYTES}}}])",
    "begins a line that is too long": f"put(b'x' * {MAX_ANSWER_BYTES + 1}); read()",
    "reports, then dies": "report(progress=1); send(method='notifications/of-tomorrow'); os._exit(3)",
}
"""What the child does when it is called, and its connection ends."""


@dataclass(frozen=True)
class Seen:
    """What can be seen of one call, by its caller and by the child."""

    result: CallResult | type[CallResult]
    reports: list[CallProgress]
    received: list[dict[str, Any]]


@asynccontextmanager
async def opened(spec: ServerSpec, changed: Callable[[], None] = lambda: None) -> AsyncGenerator[Session]:
    session = Session(spec, spec.options.protocol, ChildDiagnostics(), changed, Watched(spec.name, Updates()))
    async with session.opened():
        await session.list_all()
        yield session


def peer(trace: Path, protocol: str = "auto") -> ServerSpec:
    trace.unlink(missing_ok=True)
    spec = script(PEER, protocol=protocol)
    return replace(spec, transport=replace(cast("Stdio", spec.transport), env={"TRACE": str(trace)}))


def received(trace: Path, method: str = "") -> list[dict[str, Any]]:
    """The messages to the child, without the ids that are chosen here. `method`: of these only."""
    messages = [json.loads(line) for line in trace.read_bytes().split(b"\n") if line]
    ids = [message["id"] for message in messages if "method" in message and "id" in message]
    assert len(ids) == len(set(ids))
    for message in messages:
        if isinstance(message.get("id"), int):
            message["id"] = "any"
        params = message.get("params", {})
        params.pop("requestId", None)
        params.get("_meta", {}).pop("progressToken", None)
        if message.get("method") != "tools/call":  # whatever is no call declares that people can be asked
            params.get("_meta", {}).get(CLIENT_CAPABILITIES_META_KEY, {}).pop("elicitation", None)
    return [message for message in messages if method in message.get("method", "")]


async def both_ways(call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """The result of `call`, and the same when the SDK's transport carries it."""
    ours = await call()
    monkeypatch.setattr("plugins_mcp.mcp.session.direct_session", _none)
    return ours, await call()


def _none(*_: object) -> AbstractAsyncContextManager[None]:
    return nullcontext()


async def called(session: Session, trace: Path, run: str) -> Seen:
    """One call, and what came with it."""
    reports: list[CallProgress] = []
    # The SDK's transport does not record whether a call was sent; here every call is. It declares for each that people
    # can be asked.
    send_state = SendState(sent=True, may_ask=True)
    result = await session.call("t", {"run": run}, send_state, reports.append, {"traceparent": "00-1-2-00"})
    return Seen(result, reports, received(trace))


@pytest.mark.parametrize("protocol", ERAS)
async def test_a_line_and_the_transport_of_the_sdk_do_the_same(
    protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    trace = tmp_path / "trace"

    async def calls() -> dict[str, tuple[Seen, Seen, int]]:
        """For each answer of the child the call, the next one, and how often the tools were announced."""
        found = dict[str, tuple[Seen, Seen, int]]()
        changes = list[None]()
        async with opened(peer(trace, protocol), lambda: changes.append(None)) as session, asyncio.timeout(60):
            for name, run in ANSWERS.items():
                call, after = await called(session, trace, run), await called(session, trace, "answer()")
                assert isinstance(after.result, Answered)
                assert not session.ended.is_set()
                found[name] = (call, after, len(changes))
                changes.clear()
                os.truncate(trace, 0)
        return found

    ours, theirs = await both_ways(calls, monkeypatch)
    for name in ANSWERS:
        with subtests.test(name=name):
            assert ours[name] == theirs[name]
    if protocol == "legacy":
        for name in ("half a character", "bytes that are no text"):
            assert isinstance(ours[name][0].result, Answered)


@pytest.mark.parametrize("protocol", ERAS)
@pytest.mark.parametrize("name", ENDS)
async def test_the_end_of_a_connection_during_a_call_is_that_of_the_transport_of_the_sdk(
    name: str, protocol: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = tmp_path / "trace"

    async def call() -> Seen:
        async with opened(peer(trace, protocol)) as session, asyncio.timeout(10):
            seen = await called(session, trace, ENDS[name])
            await session.ended.wait()
        return seen

    ours, theirs = await both_ways(call, monkeypatch)
    assert ours == theirs


@pytest.mark.parametrize("anyio_backend", LOOPS, indirect=True)
async def test_a_call_waits_unsent_while_the_child_does_not_read(tmp_path: Path) -> None:
    trace, gate = tmp_path / "trace", tmp_path / "gate"
    os.mkfifo(gate)
    async with opened(peer(trace)) as session, asyncio.timeout(20):
        stuck, large, waiting = SendState(), SendState(), SendState()
        first = asyncio.create_task(
            session.call("t", {"run": f"open({str(gate)!r}).read(); answer()"}, stuck, print, None)
        )
        await wait_until(lambda: '"tools/call"' in trace.read_text())
        run = {"run": "answer()", "text": "x" * 2_000_000}
        second = asyncio.create_task(session.call("t", run, large, print, None))
        await wait_until(lambda: large.sent)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2):
                await session.call("t", {"run": "answer()"}, waiting, print, None)
        assert not waiting.sent
        third = asyncio.create_task(session.call("t", {"run": "answer()"}, waiting, print, None))
        gate.write_text("go on")
        assert {type(each) for each in await asyncio.gather(first, second, third)} == {Answered}
    assert len(received(trace, "tools/call")) == 3


@pytest.mark.parametrize("anyio_backend", LOOPS, indirect=True)
async def test_a_call_into_an_input_that_the_child_has_closed_ends_at_once(tmp_path: Path) -> None:
    """The child may live on without it."""
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    async with opened(peer(tmp_path / "trace")) as session, asyncio.timeout(10):
        closing = {"run": f"{CLOSE_INPUT}; answer(); open({str(hold)!r}).read(); os._exit(0)"}
        assert isinstance(await session.call("t", closing, SendState(), print, None), Answered)
        state = SendState()
        result = await session.call("t", {"run": "answer()"}, state, print, None)
        assert isinstance(result, Ambiguous if state.sent else NotSent)
        assert session.ended.is_set()
        later = SendState()
        assert isinstance(await session.call("t", {"run": "answer()"}, later, print, None), NotSent)
        assert not later.sent
        hold.write_text("")


@pytest.mark.parametrize("anyio_backend", LOOPS, indirect=True)
async def test_a_call_ends_when_the_child_has_closed_its_input_and_cannot_be_answered(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    os.mkfifo(hold)
    async with opened(peer(tmp_path / "trace")) as session, asyncio.timeout(10):
        asking = f"{CLOSE_INPUT}; send(id='p', method='ping'); open({str(hold)!r}).read(); os._exit(0)"
        result = await session.call("t", {"run": asking}, SendState(), print, None)
        assert result == Ambiguous("the connection was lost during the call")
        hold.write_text("")


async def test_a_call_ends_with_its_session_and_does_not_wait_for_the_end_of_the_child(tmp_path: Path) -> None:
    trace, hold = tmp_path / "trace", tmp_path / "hold"
    os.mkfifo(hold)
    run = f"import select; fifo = os.open({str(hold)!r}, os.O_RDONLY | os.O_NONBLOCK); trace.write(b'held'); "
    run += "select.select([fifo], [], [])"

    def release(call: object) -> None:
        with suppress(OSError):  # the child is gone
            os.close(os.open(hold, os.O_WRONLY | os.O_NONBLOCK))

    async with asyncio.timeout(10):
        async with opened(peer(trace)) as session:
            call = asyncio.create_task(session.call("t", {"run": run}, SendState(), print, None))
            call.add_done_callback(release)
            await wait_until(lambda: trace.read_bytes().endswith(b"held"))
            begun = time.monotonic()
        assert time.monotonic() - begun < TERMINATE_SECONDS
        assert await call == Ambiguous("the connection was lost during the call")


async def test_nothing_of_a_call_is_kept(tmp_path: Path) -> None:
    async with opened(peer(tmp_path / "trace")) as session, asyncio.timeout(10):

        async def kept() -> int:
            for _ in range(20):
                await session.call("t", {"run": "answer()"}, SendState(), print, None)
            gc.collect()
            return sum(isinstance(each, asyncio.Queue) for each in gc.get_objects())

        gc.freeze()  # what is frozen is not among the objects
        before = await kept()
        assert await kept() <= before
