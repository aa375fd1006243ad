"""A whole engine before a provider with habits of its own: what its users receive."""

from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Event, publish, running_engine, settings
from tests.marks import promise
from tests.support.corpus import CORPUS, stream_bytes
from tests.support.fakes import tool
from tests.support.scripted_provider import Exchange, Provider, answer, refusal, serving
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
KEYS = Keys()
DONE = (
    b'data: {"choices":[{"delta":{"content":"All is said."},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(DONE))) as provider:
        yield provider


@pytest.fixture
async def engine(tmp_path: Path, redis_url: str, provider: Provider) -> AsyncGenerator[Engine]:
    async with running_engine(settings(tmp_path, redis_url, provider.url)) as engine:
        yield engine


def trace(name: str) -> bytes:
    return stream_bytes(CORPUS / "streams" / f"{name}.json")


def text_of(events: list[Event]) -> str:
    return "".join(event.data["delta"] for event in events if event.name == "text")


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
    provider.scripts.insert(0, answer(trace(name)))
    events = await engine.chat()

    assert text_of(events) == text
    assert events[-1].data["reason"] == reason
    session = next(event.data["sessionId"] for event in events if "sessionId" in event.data)
    stored = (await engine.client.get(f"/v1/sessions/{session}/messages")).json()
    assert [message["content"] for message in stored["messages"]] == ["Hi", text]
    assert stored["turns"][-1]["reason"] == reason
    assert (await engine.chat("Go on.", sessionId=session))[-1].data["reason"] == "stop"


@promise("a provider that sends nothing ends a turn after a bounded time")
async def test_a_provider_that_accepts_and_says_nothing_does_not_hold_the_turn(
    tmp_path: Path, redis_url: str, provider: Provider
) -> None:
    provider.scripts.insert(0, Exchange.until_closed)
    configured = settings(tmp_path, redis_url, provider.url, model_first_token_seconds=0.5)
    async with running_engine(configured) as engine:
        events = await engine.chat()

        [error] = [event.data for event in events if event.name == "error"]
        assert error["code"] == "MODEL_UNAVAILABLE"
        assert "nothing came for 0.5 seconds" in error["message"]
        assert events[-1].data["reason"] == "error"
        session = next(event.data["sessionId"] for event in events if "sessionId" in event.data)
        assert (await engine.chat("Again!", sessionId=session))[-1].data["reason"] == "stop"


@promise("a tool with an invalid schema is left out, and the reason reported")
async def test_what_one_model_refuses_another_is_offered_all_the_same(
    tmp_path: Path, redis_url: str, provider: Provider
) -> None:
    publish(redis_url, tool("a__good"), tool("a__bad"))

    complaint = "Invalid schema for function 'a__bad': array schema missing items."
    error = {"error": {"message": complaint, "type": "invalid_request_error"}}

    async def picky(exchange: Exchange) -> None:
        asked = provider.requests[-1]
        bad = asked["model"] == "usual" and len(asked["tools"]) == 2
        await (refusal(400, error) if bad else answer(DONE))(exchange)

    provider.scripts = [picky]
    configured = settings(tmp_path, redis_url, provider.url, openai_model="usual", allowed_models="openai:other")
    async with running_engine(configured) as engine:
        await wait_until(lambda: engine.offers(2), what="the tools")
        await engine.chat()
        await engine.chat(model="openai:other")
        [server] = (await engine.client.get("/v1/tools")).json()["servers"]
        refused = 'dialog_tools_refused_total{model="openai:usual",tool="a__bad"} 1.0'
        assert refused in (await engine.client.get("/metrics")).text

    assert [len(request["tools"]) for request in provider.requests] == [2, 1, 2]
    assert [each["name"] for each in server["tools"]] == ["a__good", "a__bad"]
    assert [(each["tool"], each["model"]) for each in server["quarantined"]] == [("bad", "openai:usual")]
