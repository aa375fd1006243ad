"""Turns over HTTP, through a whole engine: real sockets, a real file, a real Redis."""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dialog_engine.chat.events import Batch, Cursor
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.http import sse
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome
from tests.integration.engines import Engine, Model, Start, publish, running_engine, settings
from tests.marks import promise
from tests.support.ledger import Bench
from tests.support.servers import LocalServer
from tests.support.waiting import wait_until


def words(events: list[Any]) -> str:
    return "".join(event.data["delta"] for event in events if event.name == "text")


def kinds(events: list[Any]) -> list[str]:
    """The names, with text that goes on as one: how many events it takes depends on how fast its reader is."""
    return [name for name, _ in groupby(event.name for event in events)]


async def test_a_turn_is_streamed_from_its_start_to_done(engine: Engine) -> None:
    async with engine.stream("POST", "/v1/chat", json={"message": "Hi"}) as stream:
        events = [event async for event in stream]
        headers = stream.response.headers

    assert kinds(events) == ["control", "text", "message", "done"]
    assert words(events) == events[-2].data["content"] == "Hello"
    assert events[-1].data["usage"] == {"inputTokens": 7, "outputTokens": 3}
    assert events[-1].data["reason"] == "stop"
    assert events[0].data == {
        "type": "turn", "status": "started",
        "turnId": headers["x-turn-id"], "sessionId": headers["x-session-id"],
    }  # fmt: skip
    assert stream.retry == 1000
    assert headers["content-type"].startswith("text/event-stream")
    assert headers["x-accel-buffering"] == "no"
    assert headers["cache-control"] == "no-store, no-transform"
    assert "content-encoding" not in headers
    assert "server" not in headers
    cursors = [Cursor.parse(event.id) for event in events]
    assert cursors == sorted(set(cursors))


async def test_a_stream_that_fails_is_logged_and_its_connection_closed(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def failing(*_: object) -> AsyncGenerator[Batch]:
        yield ()
        raise StorageUnavailableError("no more")

    monkeypatch.setattr(sse, "of_running", failing)
    with pytest.raises(httpx2.RemoteProtocolError):
        async with engine.stream("POST", "/v1/chat", json={"message": "Hi"}) as stream:
            [_ async for _ in stream]

    [failure] = [record.exc_info[1] for record in caplog.records if record.exc_info]
    assert isinstance(failure, ExceptionGroup)
    assert failure.subgroup(StorageUnavailableError) is not None


async def test_a_client_resumes_after_any_event(engine: Engine) -> None:
    events = await engine.chat()
    path = f"/v1/turns/{events[0].data['turnId']}/events"
    replayed = await engine.events("GET", path)
    assert (kinds(replayed), words(replayed)) == (kinds(events), words(events))
    for n, event in enumerate(events[:-1]):
        rest = events[n + 1 :]
        for options in ({"headers": {"Last-Event-ID": event.id}}, {"params": {"after": event.id}}):
            again = await engine.events("GET", path, **options)
            assert (words(again), again[-1]) == (words(rest), rest[-1])
    # The header is what a browser sends by itself: it knows better than the address it was opened with.
    both = {"headers": {"Last-Event-ID": events[-2].id}, "params": {"after": "1-1"}}
    assert await engine.events("GET", path, **both) == events[-1:]
    for after in (events[-1].id, "1-999", "9-1"):
        answer = await engine.client.get(path, params={"after": after})
        assert (answer.status_code, answer.content) == (204, b"")


@promise("with Redis or all workers down chat still answers")
async def test_without_redis_chat_works_and_readiness_says_degraded(
    tmp_path: Path, own_redis: LocalServer, model: Model
) -> None:
    own_redis.kill()
    async with running_engine(settings(tmp_path, own_redis.url, model.url)) as engine:
        assert words(await engine.chat()) == "Hello"
        ready = await engine.client.get("/readyz")
        assert (ready.status_code, ready.json()["status"]) == (200, "degraded")
        assert ready.json()["parts"]["redis"] == "unavailable"
        assert ready.json()["parts"]["outbox"]["waiting"] == 1
        metrics = (await engine.client.get("/metrics")).text
        assert "dialog_redis_up 0.0" in metrics
        own_redis.start()

        async def caught_up() -> bool:
            return (await engine.client.get("/readyz")).json()["parts"]["outbox"]["waiting"] == 0

        await wait_until(caught_up)


# --- Tools ---


DRAW = ToolEntry(name="demo__draw", server="demo", tool="draw", input_schema={"type": "object"})


@pytest.fixture
def worker(bench: Bench, redis_url: str) -> Bench:
    publish(redis_url, DRAW)
    return bench


async def answered(worker: Bench, *content: TextBlock | MediaBlock) -> str:
    """Answer the call that waits; its id."""
    await wait_until(worker.backlog)
    delivery = await worker.deliver()
    await worker.worker.complete(delivery, await worker.run(delivery), ToolOutcome(CallState.SUCCEEDED, content))
    return delivery.request.correlation_id


DRAWING = (
    TextBlock("a picture"),
    MediaBlock("image/png", "iVBORyBub3QgcmVhbGx5"),
    MediaBlock("image/png\r\nset-cookie: a=b", "AAAA"),
    MediaBlock("image/png", "not base64!"),
)


async def test_a_tool_call_passes_all_its_states_and_its_media_are_served(
    worker: Bench, engine: Engine, model: Model
) -> None:
    model.will_call("demo__draw", "no__such_tool")
    async with engine.stream("POST", "/v1/chat", json={"message": "Draw"}) as stream:
        call = await answered(worker, *DRAWING)
        events = [event async for event in stream]
    steps = [(event.data["toolName"], event.data["status"]) for event in events if event.data.get("type") == "tool"]
    assert [status for name, status in steps if name == "demo__draw"] == ["pending", "queued", "succeeded"]
    assert [status for name, status in steps if name == "no__such_tool"] == ["pending", "failed"]
    assert words(events) == "One moment.Hello"

    shown = next(event.data["result"] for event in events if event.data.get("status") == "succeeded")
    assert len(shown["media"]) == 3
    png = await engine.client.get(shown["media"][0]["url"])
    assert (png.status_code, png.headers["content-type"]) == (200, "image/png")
    assert png.content == b"\x89PNG not really"
    assert "sandbox" in png.headers["content-security-policy"]
    assert png.headers["x-content-type-options"] == "nosniff"
    assert png.headers["cache-control"].startswith("private")
    strange = (await engine.client.get(shown["media"][1]["url"])).headers
    assert (strange["content-type"], strange["content-disposition"]) == ("application/octet-stream", "attachment")
    assert "set-cookie" not in strange
    base = shown["media"][0]["url"].rpartition("/")[0]
    for number in (-1, 0, 3, 4, 10**30):
        answer = await engine.client.get(f"{base}/{number}")
        assert (answer.status_code, answer.json()["code"]) == (404, "CONTENT_NOT_FOUND")
    wrong = await engine.client.get(f"{base}/x")
    assert (wrong.status_code, wrong.json()["errors"][0]["field"]) == (422, "number")
    other = await engine.client.get(base.replace(call, "other") + "/1")
    assert (other.status_code, other.json()["code"]) == (404, "CONTENT_NOT_FOUND")

    metrics = (await engine.client.get("/metrics")).text
    assert 'dialog_tool_calls_total{status="succeeded",tool="demo__draw"} 1.0' in metrics
    assert 'dialog_tool_calls_total{status="failed",tool="(not run)"} 1.0' in metrics
    assert "no__such_tool" not in metrics
    tools = (await engine.client.get("/v1/tools")).json()
    assert tools["mcp"] == "enabled"
    assert [tool["name"] for tool in tools["servers"][0]["tools"]] == ["demo__draw"]


LOG = "".join(f"<b>line</b> {number}\n" for number in range(30_000))


@promise("the user can see the whole of a result, as nothing but text")
async def test_a_long_result_is_shortened_and_its_whole_text_is_served_as_plain_text(
    worker: Bench, engine: Engine, model: Model
) -> None:
    model.will_call("demo__draw")
    async with engine.stream("POST", "/v1/chat", json={"message": "Draw"}) as stream:
        call = await answered(worker, TextBlock(LOG), TextBlock("for the user", user_only=True))
        events = [event async for event in stream]

    shown = next(event.data["result"] for event in events if event.data.get("status") == "succeeded")
    assert shown["truncated"]
    assert LOG.startswith(shown["text"])
    assert len(shown["text"]) == 4_000
    whole = await engine.client.get(shown["textUrl"])
    assert (whole.status_code, whole.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert whole.text == f"{LOG}\nfor the user"
    assert whole.headers["x-content-type-options"] == "nosniff"
    assert "sandbox" in whole.headers["content-security-policy"]
    other = await engine.client.get(shown["textUrl"].replace(call, "other"))
    assert (other.status_code, other.json()["code"]) == (404, "CONTENT_NOT_FOUND")
    exported = json.loads((await engine.client.get("/v1/me/data")).text.splitlines()[0])
    assert exported["wholeTexts"] == [{"correlationId": call, "text": f"{LOG}\nfor the user"}]


@promise("large results are paged through with a tool")
async def test_a_model_reads_parts_of_a_result_of_half_a_megabyte(worker: Bench, engine: Engine, model: Model) -> None:
    model.will_call("demo__draw")
    log = "".join(f"entry {number}: {'needle' if number == 20_000 else 'hay'}\n" for number in range(30_000))
    async with engine.stream("POST", "/v1/chat", json={"message": "Read"}) as stream:
        await wait_until(worker.backlog)
        delivery = await worker.deliver()
        name = delivery.request.correlation_id[-8:]
        model.will_call_with("read_result", {"id": name, "find": "NEEDLE"})
        model.will_call_with("read_result", {"id": name, "offset": log.index("entry 20000"), "length": 30})
        outcome = ToolOutcome(CallState.SUCCEEDED, (TextBlock(log),))
        await worker.worker.complete(delivery, await worker.run(delivery), outcome)
        events = [event async for event in stream]

    assert [tool["function"]["name"] for tool in model.asked[0]["tools"]] == ["demo__draw"]
    assert [tool["function"]["name"] for tool in model.asked[1]["tools"]] == ["demo__draw", "read_result"]
    shown, found, read = (request["messages"][-1]["content"] for request in model.asked[1:])
    assert len(log) > 400_000
    assert len(shown) < 16_200
    assert shown.startswith("entry 0: hay\n")
    assert shown.endswith("entry 29999: hay\n")
    assert f'call read_result with id "{name}" and offset ' in shown
    assert f"offset {log.index('needle')}: …" in found
    assert "\nentry 20000: needle\n" in read
    steps = [event.data["status"] for event in events if event.data.get("toolName") == "read_result"]
    assert [status for status in steps if status != "pending"] == ["succeeded", "succeeded"]
    assert words(events).endswith("Hello")


# --- The end of the engine ---


@promise("SIGTERM has streams reconnect")
async def test_at_shutdown_streams_end_with_a_reconnect_hint_those_of_turns_of_other_engines_too(
    start: Start, postgres_url: str, model: Model
) -> None:
    model.held.clear()
    async with AsyncExitStack() as stack:
        async with start(database_url=postgres_url) as owner:
            stream = await RawStream.begin(owner, stack)
            turn = re.search(rb'"turnId":"([^"]+)"', await stream.until(b'"delta":"He"'))
            assert turn
            async with start(database_url=postgres_url) as other:
                elsewhere = await RawStream.begin(other, stack, f"GET /v1/turns/{turn[1].decode()}/events")
                await elsewhere.until(b'"delta":"He"')
                began = time.monotonic()
            ends = [await elsewhere.rest()]
        ends.append(await stream.rest())
    assert time.monotonic() - began < 6  # they need not be cut
    for rest in ends:
        # Read to its end: a stream that was cut would have no last chunk.
        assert rest.endswith(b"\r\n0\r\n\r\n")
        assert re.search(rb": reconnect\nretry: \d+\n\n", rest)
        assert b"event: done" not in rest
        assert b"error" not in rest


@promise("SIGTERM has streams reconnect")
async def test_a_turn_that_ends_within_the_grace_period_is_streamed_to_its_end(start: Start, model: Model) -> None:
    model.held.clear()
    async with AsyncExitStack() as stack:
        async with start(shutdown_grace_seconds=20) as engine:
            stream = await RawStream.begin(engine, stack)
            await stream.until(b'"delta":"He"')
            asyncio.get_running_loop().call_later(0.5, model.held.set)
        rest = await stream.rest()
    assert b"event: done" in rest
    assert b"reconnect" not in rest


class RawStream:
    """A chat over a plain connection: every byte of the answer."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def begin(cls, engine: Engine, stack: AsyncExitStack, asks: str = "POST /v1/chat") -> "RawStream":
        host, port = engine.url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        stack.callback(writer.close)
        body = b'{"message":"Hi"}' if asks.startswith("POST") else b""
        head = f"{asks} HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
        writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        return cls(reader, writer)

    async def until(self, words: bytes) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.readuntil(words)

    async def rest(self) -> bytes:
        async with asyncio.timeout(10):
            return await self._reader.read()
