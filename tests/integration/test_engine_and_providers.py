"""A whole engine before providers with habits of their own, and before one behind another: what its users receive."""

import json
from collections.abc import AsyncGenerator
from functools import partial

import pytest

from dialog_engine.context import NOTE
from tests.integration.engines import Engine, Event, Start, publish
from tests.marks import promise
from tests.support.corpus import CORPUS, stream_bytes
from tests.support.fakes.worker import tool
from tests.support.protocols import PROTOCOLS
from tests.support.scripted_provider import Exchange, Provider, Script, answer, refusal, serving
from tests.support.waiting import wait_until

DONE = (
    b'data: {"choices":[{"delta":{"content":"All is said."},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(DONE))) as provider:
        yield provider


@pytest.fixture
async def engine(start: Start, provider: Provider) -> AsyncGenerator[Engine]:
    async with start(model_url=provider.url) as engine:
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
    start: Start, provider: Provider
) -> None:
    provider.scripts.insert(0, Exchange.until_closed)
    async with start(model_url=provider.url, model_first_token_seconds=0.5) as engine:
        events = await engine.chat()

        [error] = [event.data for event in events if event.name == "error"]
        assert error["code"] == "MODEL_UNAVAILABLE"
        assert "nothing came for 0.5 seconds" in error["message"]
        assert events[-1].data["reason"] == "error"
        session = next(event.data["sessionId"] for event in events if "sessionId" in event.data)
        assert (await engine.chat("Again!", sessionId=session))[-1].data["reason"] == "stop"


@promise("a tool with an invalid schema is left out, and the reason reported")
async def test_what_one_model_refuses_another_is_offered_all_the_same(
    start: Start, redis_url: str, provider: Provider
) -> None:
    publish(redis_url, tool("a__good"), tool("a__bad"))

    complaint = "Invalid schema for function 'a__bad': array schema missing items."
    error = {"error": {"message": complaint, "type": "invalid_request_error"}}

    async def picky(exchange: Exchange) -> None:
        asked = provider.requests[-1]
        bad = asked["model"] == "usual" and len(asked["tools"]) == 2
        await (refusal(400, error) if bad else answer(DONE))(exchange)

    provider.scripts = [picky]
    chosen = {"openai_model": "usual", "allowed_models": "openai:other"}
    async with start(model_url=provider.url, **chosen) as engine:
        await wait_until(lambda: engine.offers(2), what="the tools")
        await engine.chat()
        await engine.chat(model="openai:other")
        [server] = (await engine.client.get("/v1/tools")).json()["servers"]
        refused = 'dialog_tools_refused_total{model="openai:usual",tool="a__bad"} 1.0'
        assert refused in (await engine.client.get("/metrics")).text

    assert [len(request["tools"]) for request in provider.requests] == [2, 1, 2]
    assert [each["name"] for each in server["tools"]] == ["a__good", "a__bad"]
    assert [(each["tool"], each["model"]) for each in server["quarantined"]] == [("bad", "openai:usual")]


# --- One behind another ---

ANTHROPIC = PROTOCOLS["anthropic"]
OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}


@pytest.fixture
async def first() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(ANTHROPIC.hello)), path="") as provider:
        yield provider


@pytest.fixture
def behind(start: Start, first: Provider, provider: Provider) -> Start:
    """Engines that ask a provider of Anthropic messages first."""
    return partial(
        start,
        model_url=provider.url,
        llm_provider="anthropic",
        anthropic_base_url=first.url,
        anthropic_model="claude",
        llm_fallbacks="openai:gpt",
    )


@promise("another model is asked before any text reached the user")
@pytest.mark.parametrize(
    "fails",
    [refusal(529, OVERLOADED), refusal(429, OVERLOADED), answer(b": nothing\n\n", cut=True)],
    ids=["529", "429", "broken after a comment"],
)
async def test_while_the_first_cannot_answer_the_next_one_does_and_the_first_is_left_in_peace(
    behind: Start, first: Provider, provider: Provider, fails: Script
) -> None:
    first.scripts = [fails]
    async with behind() as engine:
        events = await engine.chat()
        turn = (await engine.client.get(f"/v1/turns/{events[-1].data['turnId']}")).json()
        again = await engine.chat()

    assert [text_of(each) for each in (events, again)] == ["All is said."] * 2
    assert not [event for event in events if event.name in ("error", "reset")]
    assert (turn["status"], turn["model"], again[-1].data["model"]) == ("done", "openai:gpt", "openai:gpt")
    assert (len(first.requests), len(provider.requests)) == (1, 2)


@promise("of a long conversation each model is sent what fits, and the model and the client know what is missing")
async def test_of_a_long_conversation_each_model_gets_what_fits_and_the_model_and_the_client_are_told(
    behind: Start, first: Provider, provider: Provider
) -> None:
    async with behind(context_tokens={"anthropic:claude": 3000, "": 2000}) as engine:
        session: str = (await engine.client.post("/v1/sessions")).json()["sessionId"]

        async def ask(number: int) -> tuple[list[Event], list[Event]]:
            events = await engine.chat(f"{number}" + " word" * 320, sessionId=session)
            return events, [event for event in events if event.data.get("type") == "decision"]

        asked = [await ask(number) for number in range(8)]
        assert [decided for _, decided in asked[:3]] == [[], [], []]
        events, [decided] = asked[-1]
        left_out = decided.data["messagesLeftOut"]
        assert decided.data == {"type": "decision", "model": "anthropic:claude", "messagesLeftOut": left_out}
        assert [event.name for event in events].index("text") > events.index(decided)
        sent = first.requests[-1]
        assert len(sent["messages"]) + left_out == 2 * 7 + 1
        assert NOTE in json.dumps(sent["system"])
        assert NOTE not in json.dumps(first.requests[0])

        first.scripts = [refusal(529, OVERLOADED)]
        _, [decided] = await ask(8)
        assert decided.data["model"] == "openai:gpt"
        assert decided.data["messagesLeftOut"] > left_out + 2
        assert NOTE in provider.requests[0]["messages"][0]["content"]
