"""A whole engine with a model that cannot answer, and another one behind it: what its users receive."""

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.context import NOTE
from dialog_engine.settings import Settings
from tests.integration.engines import Engine, Event, running_engine, settings
from tests.marks import promise
from tests.support.protocols import anthropic_sse
from tests.support.scripted_provider import Provider, Script, answer, refusal, serving

pytestmark = pytest.mark.anyio


def anthropic(*words: str, end: bool = True) -> bytes:
    """The reply of an Anthropic server, or its beginning."""
    events: list[dict[str, Any]] = [
        {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        *[{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": word}} for word in words],
    ]
    if end:
        events += [
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            {"type": "message_stop"},
        ]
    return anthropic_sse(*events)


OVERLOADED = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}}
OPENAI = (
    b'data: {"choices":[{"delta":{"content":"The second answers."},"finish_reason":"stop"}]}\n\n'
    b'data: {"choices":[],"usage":{"prompt_tokens":5,"completion_tokens":3}}\n\ndata: [DONE]\n\n'
)


@pytest.fixture
async def first() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(anthropic("The first answers."))), path="") as provider:
        yield provider


@pytest.fixture
async def second() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(OPENAI))) as provider:
        yield provider


@pytest.fixture
async def engine(tmp_path: Path, redis_url: str, first: Provider, second: Provider) -> AsyncGenerator[Engine]:
    async with running_engine(configured(tmp_path, redis_url, first, second)) as engine:
        yield engine


def configured(folder: Path, redis_url: str, first: Provider, second: Provider, **changes: Any) -> Settings:
    return settings(
        folder,
        redis_url,
        second.url,
        llm_provider="anthropic",
        anthropic_base_url=first.url,
        anthropic_model="claude",
        llm_fallbacks="openai:gpt",
        **changes,
    )


def answer_of(events: list[Event]) -> tuple[str, str, str | None]:
    """The text, why the turn ended, and which model spoke last."""
    text = "".join(event.data["delta"] for event in events if event.name == "text")
    return text, events[-1].data["reason"], events[-1].data.get("model")


@promise("another model is asked before any text reached the user")
@pytest.mark.parametrize(
    "fails",
    [
        refusal(529, OVERLOADED),
        refusal(503),
        refusal(429, OVERLOADED),
        answer(cut=True),
        answer(b": nothing\n\n", cut=True),
    ],
    ids=["529", "503", "429", "broken", "broken after a comment"],
)
async def test_while_the_first_cannot_answer_the_next_one_does_and_the_first_is_left_in_peace(
    engine: Engine, first: Provider, second: Provider, fails: Script
) -> None:
    first.scripts = [fails]
    events = await engine.chat()

    assert answer_of(events) == ("The second answers.", "stop", "openai:gpt")
    assert not [event for event in events if event.name in ("error", "reset")]
    turn = (await engine.client.get(f"/v1/turns/{events[-1].data['turnId']}")).json()
    assert (turn["status"], turn["model"]) == ("done", "openai:gpt")
    assert answer_of(await engine.chat()) == ("The second answers.", "stop", "openai:gpt")
    assert (len(first.requests), len(second.requests)) == (1, 2)


@promise("another model is asked before any text reached the user")
async def test_after_the_first_word_there_is_no_fallback(engine: Engine, first: Provider, second: Provider) -> None:
    first.scripts = [answer(anthropic("The first", end=False), cut=True)]
    events = await engine.chat()

    assert answer_of(events)[:2] == ("The first", "error")
    assert [event.data["code"] for event in events if event.name == "error"] == ["MODEL_STREAM_BROKEN"]
    assert (len(first.requests), second.requests) == (1, [])


@promise("of a long conversation each model is sent what fits, and the model and the client know what is missing")
async def test_of_a_long_conversation_each_model_gets_what_fits_and_the_model_and_the_client_are_told(
    tmp_path: Path, redis_url: str, first: Provider, second: Provider
) -> None:
    contexts = {"context_tokens": {"anthropic:claude": 3000, "": 2000}}
    async with running_engine(configured(tmp_path, redis_url, first, second, **contexts)) as engine:
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
        assert NOTE in second.requests[0]["messages"][0]["content"]
