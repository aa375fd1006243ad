"""Which model answers, and when another one is asked."""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from dialog_engine.context import tokens_of_reply, tokens_of_request
from dialog_engine.errors import (
    LLMAuthenticationError,
    LLMContextLengthError,
    LLMError,
    LLMOverloadedError,
    LLMQuotaError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMStreamBrokenError,
    LLMUnavailableError,
)
from dialog_engine.llm.routing import MAX_COOLDOWN_SECONDS, Router, in_order
from dialog_engine.model import (
    AnsweredBy,
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Choice,
    FinishReason,
    Message,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    Turn,
    UserMessage,
)
from dialog_engine.tool_calls.ports import OpenChat
from tests.marks import promise
from tests.support.fakes.models import opened

END = StreamEnd(FinishReason.STOP)


LONG = [message for n in range(10) for message in (UserMessage(str(n) + "x" * 400), AssistantMessage("y" * 400))]


def request(model: str = "", *said: Message) -> ChatRequest:
    return ChatRequest((*said, UserMessage("Hi")), Turn("turn", "session", "subject", choice=Choice(model)))


class World:
    """Three models; what each does is `plan[name]`: its events, and the error that ends them, if any."""

    def __init__(self, *fallbacks: str, cooldown_seconds: float = 30, rooms: dict[str, int] | None = None) -> None:
        self.plan: dict[str, list[ChatEvent | LLMError]] = {name: [TextDelta(name), END] for name in "abc"}
        self.asked: list[str] = []
        self.sent: list[ChatRequest] = []
        self.closed: list[str] = []
        self.time = 1_000.0
        models = {name: self._model(name) for name in "abc"}
        self.router = Router(
            models, "a", fallbacks, cooldown_seconds=cooldown_seconds, rooms=rooms, now=lambda: self.time
        )

    async def ask(self, model: str = "", *said: Message) -> list[ChatEvent]:
        return [event async for event in await self.router.open(request(model, *said))]

    def _model(self, name: str) -> OpenChat:
        @opened
        async def answer(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
            self.asked.append(name)
            self.sent.append(request)
            assert request.messages
            try:
                for event in self.plan[name]:
                    if isinstance(event, LLMError):
                        raise event
                    yield event
            finally:
                self.closed.append(name)

        return answer


@promise("a model that could not answer is asked last for a while")
@pytest.mark.parametrize(
    ("chosen", "fallbacks", "resting", "order"),
    [
        ("a", "", "", "a"),
        ("a", "bc", "", "abc"),
        ("c", "bc", "", "cb"),
        ("a", "bc", "a", "bca"),
        ("a", "bc", "ab", "cab"),
        ("a", "bc", "abc", "abc"),
        ("a", "", "a", "a"),
    ],
)
def test_models_that_cool_down_are_asked_last(chosen: str, fallbacks: str, resting: str, order: str) -> None:
    assert in_order(chosen, list(fallbacks), lambda name: name in resting) == list(order)


@promise("another model is asked before any text reached the user")
@pytest.mark.parametrize(
    "kind", [LLMUnavailableError, LLMOverloadedError, LLMStreamBrokenError, LLMRateLimitedError, LLMQuotaError]
)
async def test_the_next_one_answers_for_a_model_that_cannot(kind: type[LLMError]) -> None:
    world = World("b", "c")
    world.plan["a"] = world.plan["b"] = [kind("x")]
    assert await world.ask() == [AnsweredBy("c"), TextDelta("c"), END]
    assert world.asked == world.closed == ["a", "b", "c"]


@promise("another model is asked before any text reached the user")
@pytest.mark.parametrize("said", [TextDelta("He"), ReasoningDelta("Hm")])
async def test_after_the_first_word_no_other_model_is_asked(said: ChatEvent) -> None:
    world = World("b")
    world.plan["a"] = [said, LLMOverloadedError("busy")]
    async with aclosing(await world.router.open(request())) as events:
        assert [await anext(events), await anext(events)] == [AnsweredBy("a"), said]
        with pytest.raises(LLMOverloadedError):
            await anext(events)
    assert world.asked == ["a"]


@promise("another model is asked before any text reached the user")
@pytest.mark.parametrize(
    "error", [LLMRequestError("x"), LLMContextLengthError("x"), LLMAuthenticationError("x"), LLMError("x")]
)
async def test_a_wrong_request_or_setting_is_reported_and_no_other_model_is_asked(error: LLMError) -> None:
    world = World("b")
    world.plan["a"] = [error]
    with pytest.raises(type(error)):
        await world.ask()
    assert world.asked == ["a"]


async def test_when_none_can_the_failure_of_the_last_is_reported() -> None:
    world = World("b")
    world.plan["a"], world.plan["b"] = [LLMUnavailableError("a is away")], [LLMOverloadedError("b is busy")]
    with pytest.raises(LLMOverloadedError, match="b is busy"):
        await world.ask()


@promise("a model that could not answer is asked last for a while")
@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (LLMOverloadedError("busy"), 30),
        (LLMRateLimitedError("slow down", 1.0), 30),
        (LLMRateLimitedError("slow down", 100.0), 100),
        (LLMRateLimitedError("slow down", 9_999.0), MAX_COOLDOWN_SECONDS),
    ],
)
async def test_a_model_cools_down_for_as_long_as_retry_after_says_and_is_then_asked_first_again(
    error: LLMError, seconds: float
) -> None:
    world = World("b")
    world.plan["a"] = [error]
    await world.ask()
    world.time += seconds - 0.1
    await world.ask()
    world.time += 0.2
    await world.ask()
    assert world.asked == ["a", "b", "b", "a", "b"]


async def test_without_a_rest_the_first_is_asked_first_every_time() -> None:
    world = World("b", cooldown_seconds=0)
    world.plan["a"] = [LLMUnavailableError("away")]
    await world.ask()
    await world.ask()
    assert world.asked == ["a", "b", "a", "b"]


async def test_a_turns_own_choice_goes_first_and_one_that_is_not_configured_is_the_default() -> None:
    world = World("b")
    assert (await world.ask("c"))[0] == AnsweredBy("c")
    assert (await world.ask("gone"))[0] == AnsweredBy("a")


# --- Conversations that are too long ---


@promise("of a long conversation each model is sent what fits, and the model and the client know what is missing")
async def test_each_model_is_sent_what_fits_its_own_context() -> None:
    world = World("b", rooms={"a": 1500, "b": 500})
    world.plan["a"] = [LLMOverloadedError("busy")]
    said = await world.ask("", *LONG)
    left_out = [request.left_out for request in world.sent]
    assert 0 < left_out[0] < left_out[1] < 20
    assert said[0] == AnsweredBy("b", left_out[1])
    assert all(tokens_of_request(sent) <= room for sent, room in zip(world.sent, (1500, 500), strict=True))
    # A reply without a report is estimated by what was sent.
    asked = replace(request("", *LONG), meter=world.sent[1].meter)
    assert tokens_of_reply(asked).input_tokens == 500 < tokens_of_request(asked)


async def test_a_model_that_finds_a_request_too_long_is_asked_with_less_while_there_is_something_to_leave_out() -> None:
    world = World("b")
    world.plan["a"] = [LLMContextLengthError("too long")]
    with pytest.raises(LLMContextLengthError):
        await world.ask("", *LONG)
    assert set(world.asked) == {"a"}
    left_out = [sent.left_out for sent in world.sent]
    assert left_out == sorted(set(left_out))
    assert (left_out[0], left_out[-1]) == (0, 20)
    assert len(left_out) <= 6
