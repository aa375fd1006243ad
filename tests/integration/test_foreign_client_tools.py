"""Tools of clients in Chat Completions, used by the unmodified package `openai`, and in the AI SDK's routes."""

import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.integration.engines import Engine, Model
from tests.integration.test_ai_sdk_routes import answer, post, said
from tests.integration.test_chat_completions import client_of, model_of, read, user
from tests.integration.test_client_tools import COLOUR
from tests.marks import exhaustive, promise
from tests.support.ui_messages import Page

FUNCTION: Any = {
    "type": "function",
    "function": {"name": "pick_colour", "description": "Picks.", "parameters": COLOUR["inputSchema"]},
}


class Talk:
    """A conversation that a client keeps."""

    def __init__(self, client: AsyncOpenAI, model: str, *, stream: bool) -> None:
        self.client, self.model, self.stream = client, model, stream
        self.messages: list[Any] = [user("Which one?")]

    async def ask(self, client: AsyncOpenAI | None = None) -> tuple[str, str]:
        """The answer with its reason; calls of the client's tools are in the messages."""
        asking = (client or self.client).chat.completions
        made: Any = await asking.create(model=self.model, messages=self.messages, tools=[FUNCTION], stream=self.stream)
        if not self.stream:
            [choice] = made.choices
            message = choice.message.model_dump(exclude_none=True)
            self.messages.append(message)
            return message["content"], choice.finish_reason
        text, _, chunks = await read(made)
        assert chunks[0].choices[0].delta.role == "assistant"
        calls = [call for each in chunks for call in (each.choices[0].delta.tool_calls or ())]
        asked = [call.model_dump(exclude={"index"}) for call in calls]
        self.messages.append({"role": "assistant", "content": text} | ({"tool_calls": asked} if asked else {}))
        return text, str(chunks[-1].choices[0].finish_reason)

    def give(self, *results: str) -> None:
        calls = self.messages[-1]["tool_calls"]
        for call, text in zip(calls, results, strict=True):
            self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": text})


@promise(
    "the tools of a client of another protocol are its own, and the request with their results goes on with the turn"
)
@pytest.mark.parametrize(
    "stream", [True, pytest.param(False, marks=exhaustive("one form of the answer"))], ids=["stream", "document"]
)
async def test_calls_of_a_client_s_tools_come_as_tool_calls_and_their_results_go_on_with_the_turn(
    engines: tuple[Engine, Engine], model: Model, stream: bool
) -> None:
    async with client_of(engines[0]) as here, client_of(engines[1]) as there:
        talk = Talk(here, await model_of(here), stream=stream)
        model.will_call("pick_colour", "pick_colour")
        assert await talk.ask() == ("One moment.", "tool_calls")
        assert [call["function"]["name"] for call in talk.messages[-1]["tool_calls"]] == ["pick_colour"] * 2
        talk.give("red", "blue")
        with pytest.raises(openai.NotFoundError):
            await there.chat.completions.create(model="nonsense", messages=talk.messages)
        model.will_call("pick_colour")
        assert await talk.ask(there) == ("One moment.", "tool_calls"), "only what follows"
        repeated = Talk(here, talk.model, stream=stream)
        repeated.messages = talk.messages[:-1]
        assert (await repeated.ask(here))[1] == "tool_calls", "the same results again"
        assert repeated.messages[-1]["tool_calls"] == talk.messages[-1]["tool_calls"]
        talk.give("green")
        model.will_say("Green.")
        assert await talk.ask(there) == ("Green.", "stop")
        assert len(model.asked) == 3
        talk.messages.append(user("Why?"))
        await talk.ask()
        assert [each["content"] for each in model.asked[3]["messages"]][-2:] == ["Green.", "Why?"]
        other = Talk(here, talk.model, stream=stream)
        other.messages = [*talk.messages[:2], {**talk.messages[2], "content": "pink"}]
        with pytest.raises(openai.ConflictError):
            await other.ask()
        other.messages[-1]["tool_call_id"] = "nobody"
        with pytest.raises(openai.NotFoundError):
            await other.ask()


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [{**FUNCTION, "function": {"name": "read_result"}}]}, "tools[0].function.name"),
        ({"tools": [FUNCTION, FUNCTION]}, "tools[1].function.name"),
        ({"tools": [{"type": "custom"}]}, "tools[0].type"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "function", "function": {"name": "other"}}}, "tool_choice"),
        ({"tools": [FUNCTION], "tool_choice": {"type": "custom"}}, "tool_choice"),
        ({"functions": [FUNCTION["function"]]}, "functions"),
    ],
)
async def test_what_cannot_be_honoured_is_a_400_with_the_parameter(
    engine: Engine, fields: dict[str, Any], param: str
) -> None:
    async with client_of(engine) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model=await model_of(client), messages=[user("Hi")], **fields)
    assert refused.value.param == param


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "pick_colour"}}])
async def test_the_first_round_has_to_call_what_the_client_demands_and_says_what_it_has_cost(
    engine: Engine, model: Model, choice: Any
) -> None:
    async with client_of(engine) as client:
        wanted: Any = {"model": await model_of(client), "tools": [FUNCTION], "tool_choice": choice}
        create: Any = client.chat.completions.create
        model.will_call("pick_colour")
        usage = {"stream": True, "stream_options": {"include_usage": True}}
        _, _, chunks = await read(await create(messages=[user("Which?")], **wanted, **usage))
        *_, end, last = chunks
        assert end.choices[0].finish_reason == "tool_calls"
        assert (last.choices, last.usage and last.usage.total_tokens) == ([], 10)
        [call] = [each for chunk in chunks if chunk.choices for each in chunk.choices[0].delta.tool_calls or ()]
        result = {"role": "tool", "tool_call_id": call.id, "content": "red"}
        done = await create(messages=[user("Which?"), result], **wanted)
        assert done.usage.total_tokens == 20
        assert [each.get("tool_choice") for each in model.asked] == [choice, None]
        model.will_call("pick_colour")
        waiting = await create(messages=[user("Which other?")], **wanted)
        assert waiting.usage.total_tokens == 10


async def test_no_tools_are_no_tools_of_the_client_either(engine: Engine, model: Model) -> None:
    async with client_of(engine) as client:
        name = await model_of(client)
        await client.chat.completions.create(model=name, messages=[user("Hi")], tools=[FUNCTION], tool_choice="none")
        assert "tools" not in model.asked[-1]


@promise(
    "the tools of a client of another protocol are its own, and the request with their results goes on with the turn"
)
@pytest.mark.parametrize("version", [*(pytest.param(each, marks=exhaustive("another version")) for each in (5, 6)), 7])
async def test_a_page_runs_its_tools_and_the_same_message_goes_on(engine: Engine, model: Model, version: int) -> None:
    engine.client.params = engine.client.params.set("v", version)
    model.will_call("pick_colour", "pick_colour")
    page = await post(engine, said("Which one?"), clientTools=[COLOUR])
    calls = [part for part in page.parts if part["type"] == "dynamic-tool"]
    assert [each["state"] for each in calls] == ["input-available"] * 2
    assert page.finish == "tool-calls"
    assert not any({"dynamic", "providerExecuted"} & each.keys() for each in calls), "so that the page runs them"
    given = {"state": "output-available", "output": {"colour": "teal"}}
    failed = {"state": "output-error", "errorText": "no page"}
    message = answer(page)
    for part, result in zip(calls, (given, failed), strict=True):
        message["parts"].append({"type": "tool-pick_colour", "toolCallId": part["toolCallId"], **result})
    model.will_say("Teal.")
    for _ in range(2):  # the second time it was given before
        again = Page()
        again.parts = [*map(dict, page.parts)]
        await post(engine, said("Which one?"), message, page=again)
        assert (again.id, again.finish, again.text) == (page.id, "stop", "One moment.Teal.")
    first, second = [each["content"] for each in model.asked[1]["messages"][-2:]]
    assert json.loads(first) == {"colour": "teal"}
    assert "no page" in second
    assert len(model.asked) == 2
