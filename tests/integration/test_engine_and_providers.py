"""A whole engine before a provider with habits of its own: what its users receive."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from redis import Redis as SyncRedis

from plugins_contract.catalog import ServerCatalog, ServerHeartbeat, ServerState, ToolEntry
from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Event, running_engine, settings
from tests.marks import promise
from tests.support.corpus import CORPUS, stream_bytes
from tests.support.fakes import tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
KEYS = Keys()
MODEL = "openai:gpt-4.1-mini"
DONE = (
    b'data: {"choices":[{"delta":{"content":"All is said."},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)


@dataclass
class Provider:
    """Answers requests with these bodies, one after the other, and then with a last word; None is never answered."""

    bodies: list[bytes | None] = field(default_factory=list[bytes | None])
    refuses: Callable[[dict[str, Any]], str | None] = lambda _: None
    asked: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    url: str = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            length = int(head.partition("content-length: ")[2].partition("\r\n")[0])
            request = json.loads(await reader.readexactly(length))
            self.asked.append(request)
            if complaint := self.refuses(request):
                body = json.dumps({"error": {"message": complaint, "type": "invalid_request_error"}}).encode()
                writer.write(b"HTTP/1.1 400 no\r\ncontent-type: application/json\r\nconnection: close\r\n\r\n" + body)
            elif (body := self.bodies.pop(0) if self.bodies else DONE) is not None:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + body)
            else:
                await reader.read(1)
            await writer.drain()
        writer.close()

    def results(self) -> list[str]:
        """The results of tool calls in the last request."""
        return [message["content"] for message in self.asked[-1]["messages"] if message["role"] == "tool"]


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    provider = Provider()
    async with await asyncio.start_server(provider.connected, "127.0.0.1", 0) as server:
        provider.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        yield provider


@pytest.fixture
async def engine(tmp_path: Path, redis_url: str, provider: Provider) -> AsyncGenerator[Engine]:
    async with running_engine(settings(tmp_path, redis_url, provider.url)) as engine:
        yield engine


def trace(name: str) -> bytes:
    return stream_bytes(CORPUS / "streams" / f"{name}.json")


def text_of(events: list[Event]) -> str:
    return "".join(event.data["delta"] for event in events if event.name == "text")


def ends(events: list[Event]) -> list[dict[str, Any]]:
    """The last steps of the tool calls."""
    return [event.data for event in events if event.data.get("type") == "tool" and "durationMs" in event.data]


@pytest.mark.parametrize("name", ["interleaved", "index-missing-no-id", "index-all-zero", "message-final"])
async def test_each_call_is_shown_and_answered_however_the_provider_writes_it(
    engine: Engine, provider: Provider, name: str
) -> None:
    provider.bodies = [trace(name)]
    events = await engine.chat()

    calls = [
        event["call"]
        for event in json.loads((CORPUS / "streams" / f"{name}.json").read_text())["events"][:-1]
        if "call" in event
    ]
    pending = [event.data for event in events if event.data.get("status") == "pending"]
    assert [(each["toolName"], each["arguments"]) for each in pending] == [
        (call["name"], json.loads(call["arguments"] or "{}")) for call in calls
    ]
    assert [each["error"]["code"] for each in ends(events)] == ["TOOL_NOT_FOUND"] * len(calls)
    assert len(provider.results()) == len(calls)
    assert events[-1].data["reason"] == "stop"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("content-filter-text", "Once upon", "content_filter"),
        ("finish-unknown", "Once upon", "length"),
        ("length-in-reasoning", "", "length"),
        ("content-filter-in-call", "", "content_filter"),
    ],
)
async def test_an_answer_that_was_cut_is_kept_and_said_to_be_cut(
    engine: Engine, provider: Provider, name: str, text: str, reason: str
) -> None:
    provider.bodies = [trace(name)]
    events = await engine.chat()

    assert text_of(events) == text
    assert events[-1].data["reason"] == reason
    session = next(event.data["sessionId"] for event in events if "sessionId" in event.data)
    stored = (await engine.client.get(f"/v1/sessions/{session}/messages")).json()
    assert [message["content"] for message in stored["messages"]] == ["Hi", text]
    assert stored["turns"][-1]["reason"] == reason
    assert (await engine.chat("Go on.", sessionId=session))[-1].data["reason"] == "stop"


async def test_a_call_that_the_limit_cut_is_not_run_and_the_model_may_try_again(
    engine: Engine, provider: Provider
) -> None:
    provider.bodies = [trace("length-before-arguments")]
    events = await engine.chat()

    [end] = ends(events)
    assert (end["status"], end["error"]["code"]) == ("failed", "INVALID_ARGUMENTS")
    assert "length limit" in end["error"]["message"]
    assert provider.results() == [f"Error INVALID_ARGUMENTS: {end['error']['message']}"]
    assert events[-1].data["reason"] == "stop"


async def test_text_before_an_error_is_kept(engine: Engine, provider: Provider) -> None:
    provider.bodies = [trace("error-in-stream")]
    events = await engine.chat()

    assert text_of(events) == "Hi"
    assert [event.data["code"] for event in events if event.name == "error"] == ["MODEL_RATE_LIMITED"]
    assert events[-1].data["reason"] == "error"


@promise("a provider that sends nothing ends a turn after a bounded time")
async def test_a_provider_that_accepts_and_says_nothing_does_not_hold_the_turn(
    tmp_path: Path, redis_url: str, provider: Provider
) -> None:
    provider.bodies = [None]
    configured = settings(tmp_path, redis_url, provider.url, model_first_token_seconds=0.5)
    async with running_engine(configured) as engine:
        events = await engine.chat()

        [error] = [event.data for event in events if event.name == "error"]
        assert error["code"] == "MODEL_UNAVAILABLE"
        assert "nothing came for 0.5 seconds" in error["message"]
        assert events[-1].data["reason"] == "error"
        session = next(event.data["sessionId"] for event in events if "sessionId" in event.data)
        assert (await engine.chat("Again!", sessionId=session))[-1].data["reason"] == "stop"


async def test_one_tool_that_the_provider_refuses_fails_no_request_and_is_reported(
    engine: Engine, provider: Provider, redis_url: str
) -> None:
    publish(redis_url, tool("a__good"), tool("a__bad", {"type": "object", "properties": {"x": {"type": "array"}}}))
    await wait_until(lambda: offers(engine, 2), what="the tools")

    def refuses(request: dict[str, Any]) -> str | None:
        names = [each["function"]["name"] for each in request.get("tools", ())]
        return "Invalid schema for function 'a__bad': array schema missing items." if "a__bad" in names else None

    provider.refuses = refuses
    events = await engine.chat()

    assert text_of(events) == "All is said."
    assert [len(request["tools"]) for request in provider.asked] == [2, 1]
    [server] = (await engine.client.get("/v1/tools")).json()["servers"]
    assert [each["name"] for each in server["tools"]] == ["a__good"]
    [aside] = server["quarantined"]
    assert (aside["tool"], aside["model"], "missing items" in aside["reason"]) == ("bad", MODEL, True)
    metrics = (await engine.client.get("/metrics")).text
    assert f'dialog_tools_refused_total{{model="{MODEL}",tool="a__bad"}} 1.0' in metrics
    await engine.chat()
    assert len(provider.asked) == 3


@promise("a tool with an invalid schema is left out, and the reason reported")
async def test_what_one_model_refuses_another_is_offered_all_the_same(
    tmp_path: Path, redis_url: str, provider: Provider
) -> None:
    publish(redis_url, tool("a__good"), tool("a__bad"))

    def refuses(request: dict[str, Any]) -> str | None:
        bad = request["model"] == "usual" and len(request["tools"]) == 2
        return "Invalid schema for function 'a__bad': array schema missing items." if bad else None

    provider.refuses = refuses
    configured = settings(tmp_path, redis_url, provider.url, openai_model="usual", allowed_models="openai:other")
    async with running_engine(configured) as engine:
        await wait_until(lambda: offers(engine, 2), what="the tools")
        await engine.chat()
        await engine.chat(model="openai:other")
        [server] = (await engine.client.get("/v1/tools")).json()["servers"]

    assert [len(request["tools"]) for request in provider.asked] == [2, 1, 2]
    assert [each["name"] for each in server["tools"]] == ["a__good", "a__bad"]
    assert [(each["tool"], each["model"]) for each in server["quarantined"]] == [("bad", "openai:usual")]


def publish(redis_url: str, *tools: ToolEntry) -> None:
    """A worker offers these tools and runs none."""
    with SyncRedis.from_url(redis_url) as redis:
        seconds, _ = redis.time()  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        at: int = seconds * 1000 + 60_000  # pyright: ignore[reportUnknownVariableType]
        beat = ServerHeartbeat(state=ServerState.READY, at=at)  # pyright: ignore[reportUnknownArgumentType]
        catalog = ServerCatalog(server="a", tools=tools)
        redis.sadd(KEYS.catalog, "a")
        redis.hset(
            KEYS.catalog_of("a"),
            mapping={"catalog": msgspec.json.encode(catalog), "worker:w": msgspec.json.encode(beat)},
        )
        redis.expire(KEYS.catalog_of("a"), 600)
        redis.publish(KEYS.control, b'{"kind":"catalog"}')


async def offers(engine: Engine, number: int) -> bool:
    servers = (await engine.client.get("/v1/tools")).json()["servers"]
    return sum(len(server["tools"]) for server in servers) == number
