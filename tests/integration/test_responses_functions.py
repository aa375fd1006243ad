"""Functions of clients in the Responses API, used by the unmodified package `openai`, against two engines."""

from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.integration.engines import Engine, Model, Start, publish
from tests.integration.test_chat_completions import PNG, client_of, clients, model_of, sent
from tests.integration.test_client_tools import COLOUR, OURS
from tests.integration.test_responses import known, read, types
from tests.marks import exhaustive, promise
from tests.support.waiting import wait_until

__all__ = ["clients"]

PICK: Any = {
    "type": "function",
    "name": "pick_colour",
    "description": "Picks.",
    "parameters": COLOUR["inputSchema"],
    "strict": True,
}


def result(call: Any, output: Any) -> Any:
    return {"type": "function_call_output", "call_id": call.call_id, "output": output}


def calls_of(response: Any) -> list[Any]:
    return [item for item in response.output if item.type == "function_call"]


async def respond(client: AsyncOpenAI, *, stream: bool, **fields: Any) -> Any:
    """The response, and that it is the same when it is read by its id."""
    if not stream:
        create: Any = client.responses.create
        return await create(**fields)
    async with client.responses.stream(**fields) as events:
        await read(events)
        response = await events.get_final_response()
    assert known(await client.responses.retrieve(response.id)) == known(response)
    return response


@promise(
    "the tools of a client of another protocol are its own, and the request with their results goes on with the turn"
)
@pytest.mark.parametrize(
    "stream", [True, pytest.param(False, marks=exhaustive("one form of the answer"))], ids=["stream", "document"]
)
async def test_calls_of_functions_are_items_and_their_outputs_go_on_with_the_turn_in_another_response(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model, stream: bool
) -> None:
    here, there = clients
    choice = "required" if stream else {"type": "function", "name": "pick_colour"}
    wanted: Any = {"model": await model_of(here), "tools": [PICK], "tool_choice": choice, "stream": stream}
    model.will_call("pick_colour", "pick_colour")
    first = await respond(here, input="Which ones?", metadata={"round": "1"}, **wanted)
    assert (first.status, types(first)) == ("completed", ["message", "function_call", "function_call"])
    assert first.output[0].phase == "commentary"
    assert first.tools[0].name == "pick_colour"
    one, two = calls_of(first)
    assert (one.name, one.arguments, one.status) == ("pick_colour", "{}", "completed")
    image = {"type": "input_image", "detail": "auto", "image_url": f"data:image/png;base64,{PNG}"}
    outputs = [result(one, "red"), result(two, [{"type": "input_text", "text": "blue"}, image])]
    model.will_call("pick_colour")
    second = await respond(there, input=outputs, previous_response_id=first.id, metadata={"round": "2"}, **wanted)
    assert (types(second), second.previous_response_id) == (["message", "function_call"], first.id)
    assert next(text for role, text in sent(model) if role == "tool") == "red"
    assert "blue" in sent(model)[-2 if sent(model)[-1][0] == "user" else -1][1]
    [three] = calls_of(second)
    model.will_say("Green.")
    references = [{"type": "item_reference", "id": three.id}, result(three, "green")]
    third = await respond(here, input=references, **wanted)
    assert (third.output_text, third.output[0].phase, len(model.asked)) == ("Green.", "final_answer", 3)
    assert [each.usage.total_tokens for each in (first, second, third)] == [10, 20, 30]
    demanded = "required" if stream else {"type": "function", "function": {"name": "pick_colour"}}
    assert [each.get("tool_choice") for each in model.asked] == [demanded, None, None]

    with pytest.raises(openai.ConflictError):
        await there.responses.create(input=[result(one, "pink")], metadata={"round": "0"}, **wanted)
    assert [each.metadata for each in (first, second, third)] == [{"round": "1"}, {"round": "2"}, {}]
    again = await respond(here, input=outputs, metadata={"round": "3"}, **wanted)
    assert known(again) == known(second), "the same outputs again"
    assert known(await there.responses.retrieve(first.id)) == known(first)
    for unknown in {"input": [outputs[0] | {"call_id": "nobody"}]}, {"input": outputs, "model": "nonsense"}:
        with pytest.raises(openai.NotFoundError):
            await there.responses.create(**wanted | unknown)
    given: Any = (await there.responses.input_items.list(second.id, order="asc")).data
    assert [(each.type, each.call_id) for each in given] == [
        ("function_call_output", one.call_id),
        ("function_call_output", two.call_id),
    ]
    assert given[0].output == "red"
    whole = await read(await here.responses.retrieve(second.id, stream=True))
    after = next(each.sequence_number for each in whole if each.type == "response.function_call_arguments.done")
    rest = await read(await there.responses.retrieve(second.id, stream=True, starting_after=after))
    assert [each.type for each in rest] == ["response.output_item.done", "response.completed"]


async def test_an_output_and_a_refusal_in_one_request_go_on_with_the_turn_and_a_message_in_place_of_them_declines(
    start: Start, redis_url: str, model: Model
) -> None:
    publish(redis_url, OURS)
    async with start() as engine, client_of(engine) as client:
        await wait_until(engine.offers, what="the tool")
        create: Any = client.responses.create
        wanted: Any = {"model": await model_of(client), "tools": [PICK]}
        model.will_call("pick_colour", OURS.name)
        first = await create(input="Both", **wanted)
        assert types(first) == ["message", "function_call", "mcp_approval_request"]
        [call], asked = calls_of(first), first.output[-1]
        refusal: Any = {"type": "mcp_approval_response", "approval_request_id": asked.id, "approve": False}
        partly = await create(input=[result(call, "red")], **wanted)
        assert (types(partly), partly.output[0].id) == (["mcp_approval_request"], asked.id)
        model.will_call("pick_colour")
        both: Any = [result(call, "red"), refusal]
        second = await create(input=both, **wanted)
        assert (types(second), len(model.asked)) == (["message", "function_call"], 2)
        assert (await create(input=both, **wanted)).id == second.id
        mixed: Any = [*both, {"role": "user", "content": "Hi"}]
        with pytest.raises(openai.BadRequestError):
            await create(input=mixed, **wanted)
        model.will_say("Never mind.")
        third = await create(input="Hi", previous_response_id=second.id, **wanted)
        assert third.output_text == "Never mind."
        assert "may or may not have taken effect" in str([text for role, text in sent(model) if role == "tool"][-1])
        with pytest.raises(openai.ConflictError):
            await create(input=[result(calls_of(second)[0], "x")], **wanted)


async def test_calls_that_another_server_has_made_are_sent_to_the_model_as_they_came(
    clients: tuple[AsyncOpenAI, AsyncOpenAI], model: Model
) -> None:
    here, there = clients
    told: Any = [
        {"role": "user", "content": "Which?"},
        {"type": "function_call", "call_id": "c1", "name": "pick", "arguments": '{"n":1}'},
        {"type": "function_call", "call_id": "c2", "name": "pick", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c1", "output": "red"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "blue"}]},
        {"role": "assistant", "content": "Red."},
        {"role": "user", "content": "Sure?"},
    ]
    name = await model_of(here)
    response = await here.responses.create(model=name, input=told)
    asked = model.asked[-1]["messages"][:-1]
    assert [(each["role"], each["content"]) for each in asked if each["role"] == "tool"] == [
        ("tool", "red"),
        ("tool", "blue"),
    ]
    [calling] = [each["tool_calls"] for each in asked if "tool_calls" in each]
    assert [call["function"]["arguments"] for call in calling] == ['{"n":1}', "{}"]
    listed = (await there.responses.input_items.list(response.id, order="asc")).data
    assert [each.type for each in listed] == [each.get("type", "message") for each in told]
    model.will_call("pick_colour")
    called = await here.responses.create(model=name, input="Which one?", tools=[PICK], store=False)
    [call] = calls_of(called)
    await there.responses.create(model=name, input=[result(call, "red")], store=False)
    history: Any = [
        {"role": "user", "content": "Which one?"},
        *(each.model_dump() for each in called.output),
        result(call, "red"),
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "Why?"},
    ]
    await here.responses.create(model=name, input=history, store=False)
    assert [text for role, text in sent(model) if role == "tool"] == ["red"], "what is stored, once"


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "mcp", "server_label": "demo"}, {**PICK, "name": "no spaces"}], "tools[0].server_label"),
        ([{**PICK, "name": "read_result"}], "tools[0].name"),
        ([PICK, PICK], "tools[1].name"),
        ([{**PICK, "parameters": {"type": "string"}}], "tools[0].parameters"),
        ([{**PICK, "parameters": 3}], "tools[0].parameters"),
        ([{"type": "function"}], "tools[0].name"),
        ([{**PICK, "description": 3}], "tools[0].description"),
    ],
)  # fmt: skip
async def test_a_function_that_cannot_be_offered_is_refused_with_its_field(
    engine: Engine, tools: list[Any], param: str
) -> None:
    async with client_of(engine) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.responses.create(model=await model_of(client), input="Hi", tools=tools)
    assert refused.value.param == param
