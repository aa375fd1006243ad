"""Requests for Chat Completions: what is wanted of the model, and what the conversation brings. Pure.

Unknown fields pass, as clients expect it; what is known and cannot be honoured is refused, with the field.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any, Literal

import msgspec

from dialog_engine.facades.images import RefusedError, check_number, image_of
from dialog_engine.facades.openai.request import check_json, check_parallel, decoded, must_call, storable, within
from dialog_engine.model import Brought, ClientCall, ClientMessage, ClientTool, Sampling
from plugins_contract.outcomes import MediaBlock

MAX_MESSAGES = 10_000
"""Of a request; and the most calls in all of them."""
MAX_STOP = 50


class _Function(msgspec.Struct):
    name: str
    arguments: str | None = None


class _Call(msgspec.Struct):
    id: str
    function: _Function


class _Image(msgspec.Struct):
    url: str


class _Part(msgspec.Struct):
    type: str
    text: str | None = None
    refusal: str | None = None
    image_url: _Image | None = None


class _Message(msgspec.Struct):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[_Part] | None = None
    tool_calls: list[_Call] | None = None
    tool_call_id: str | None = None


class _Declared(msgspec.Struct):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class _Tool(msgspec.Struct):
    type: str
    function: _Declared | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class _Body(msgspec.Struct):
    model: str
    messages: list[_Message]
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: dict[str, Any] | None = None
    reasoning_effort: str | None = None
    parallel_tool_calls: bool | None = None
    tool_choice: str | dict[str, Any] | None = None
    tool_steps: Literal["off", "reasoning", "details"] | None = None
    n: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    logit_bias: dict[str, Any] | None = None
    audio: Any = None
    modalities: list[str] | None = None
    tools: list[_Tool] | None = None
    functions: list[Any] | None = None


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """What a client wants. `tool_steps` is None where it has not said; `no_tools`: the model may call none.

    With `results`, by the ids of calls, there is no question: the turn of these calls goes on.
    """

    model: str
    question: str
    brought: Brought
    stream: bool
    usage: bool
    tool_steps: str | None
    no_tools: bool
    results: Mapping[str, str]


def read_request(body: bytes) -> CompletionRequest:
    """Read the JSON of a request, in time proportional to its length.

    Raises:
        RefusedError: it is not valid, or cannot be honoured.
    """
    wanted = decoded(body, _Body)
    _check(wanted)
    instructions, said, results = _conversation(wanted.messages)
    last = ClientMessage("user", "") if results else said.pop()
    tools = _tools(wanted)
    sampling = Sampling(
        wanted.temperature,
        wanted.top_p,
        _longest(wanted),
        _stop(wanted.stop),
        wanted.seed,
        wanted.presence_penalty,
        wanted.frequency_penalty,
        None if wanted.response_format == {"type": "text"} else wanted.response_format,
        storable(wanted.reasoning_effort, "reasoning_effort") or None,
        must_call=must_call(wanted.tool_choice, {each.name for each in tools}) if tools else "",
    )
    brought = Brought(instructions, media=last.media, said=tuple(said), sampling=sampling, tools=tools)
    check_number(brought.all_media(), "messages")
    return CompletionRequest(
        wanted.model,
        last.content,
        brought,
        bool(wanted.stream),
        bool(wanted.stream_options and wanted.stream_options.include_usage),
        wanted.tool_steps,
        wanted.tool_choice == "none",
        results,
    )


_UNSUPPORTED = {
    "n": "one answer is given to a request: leave it out",
    "logprobs": "is not available here: leave it out",
    "top_logprobs": "is not available here: leave it out",
    "logit_bias": "is not available here: leave it out",
    "audio": "answers are texts: leave it out",
    "functions": "is not supported: send tools",
}


def _check(wanted: _Body) -> None:
    if not wanted.messages:
        raise RefusedError("messages", "must not be empty")
    if len(wanted.messages) > MAX_MESSAGES:
        raise RefusedError("messages", f"has {len(wanted.messages)} messages; {MAX_MESSAGES} are allowed")
    if sum(len(each.tool_calls or ()) for each in wanted.messages) > MAX_MESSAGES:
        raise RefusedError("messages", f"has more than {MAX_MESSAGES} tool_calls")
    harmless = {"n": 1}
    for name, why in _UNSUPPORTED.items():
        value = getattr(wanted, name)
        if value and value != harmless.get(name):
            raise RefusedError(name, why)
    if wanted.modalities and wanted.modalities != ["text"]:
        raise RefusedError("modalities", _UNSUPPORTED["audio"])
    within(wanted.temperature, 0, 2, "temperature")
    check_parallel(wanted.parallel_tool_calls)
    check_json(wanted.response_format, "response_format")
    within(wanted.top_p, 0, 1, "top_p")
    if (longest := _longest(wanted)) is not None and longest < 1:
        name = "max_completion_tokens" if wanted.max_completion_tokens is not None else "max_tokens"
        raise RefusedError(name, "must be at least 1")


def _stop(stop: str | list[str] | None) -> tuple[str, ...]:
    given = [stop] if isinstance(stop, str) else stop or []
    if len(given) > MAX_STOP:
        raise RefusedError("stop", f"has {len(given)} texts; {MAX_STOP} are allowed")
    return tuple(storable(each, "stop") for each in given)


def _tools(wanted: _Body) -> tuple[ClientTool, ...]:
    """The tools that the client runs itself."""
    if not wanted.tools or wanted.tool_choice == "none":
        return ()
    tools: list[ClientTool] = []
    for number, tool in enumerate(wanted.tools):
        if tool.type != "function" or tool.function is None:
            raise RefusedError(f"tools[{number}].type", "must be function: nothing else is understood")
        about = storable(tool.function.description, f"tools[{number}].function.description")
        tools.append(ClientTool(tool.function.name, about, tool.function.parameters or {"type": "object"}))
    return tuple(tools)


def _longest(wanted: _Body) -> int | None:
    return wanted.max_tokens if wanted.max_completion_tokens is None else wanted.max_completion_tokens


def _conversation(messages: Sequence[_Message]) -> tuple[str, list[ClientMessage], dict[str, str]]:
    """The instructions, what was said, and the results of calls that it ends with. Without any it ends with the
    question."""
    instructions: list[str] = []
    said: list[ClientMessage] = []
    for number, message in enumerate(messages):
        where = f"messages[{number}].content"
        text, media = _content(message.content, where)
        if message.role in ("system", "developer"):
            instructions.append(text)
            continue
        if media and message.role != "user":
            raise RefusedError(where, "only messages of the user have images")
        calls = tuple(_calls(message, f"messages[{number}].tool_calls"))
        call_id = storable(message.tool_call_id, f"messages[{number}].tool_call_id")
        said.append(ClientMessage(message.role, text, media, calls, call_id))
    joined = "\n\n".join(each for each in instructions if each.strip())
    if results := {each.call_id: each.content for each in takewhile(lambda each: each.role == "tool", reversed(said))}:
        return joined, said, results
    if not said or said[-1].role != "user":
        raise RefusedError("messages", "the last message must be the user's, or the result of a tool")
    if not said[-1].content.strip() and not said[-1].media:
        raise RefusedError(f"messages[{len(messages) - 1}].content", "must not be empty")
    return joined, said, {}


def _calls(message: _Message, where: str) -> Iterator[ClientCall]:
    for number, call in enumerate(message.tool_calls or ()):
        name = storable(call.function.name, f"{where}[{number}].function.name")
        arguments = storable(call.function.arguments, f"{where}[{number}].function.arguments")
        yield ClientCall(storable(call.id, f"{where}[{number}].id"), name, arguments)


def _content(content: str | list[_Part] | None, where: str) -> tuple[str, tuple[MediaBlock, ...]]:
    if content is None or isinstance(content, str):
        return storable(content, where), ()
    texts: list[str] = []
    media: list[MediaBlock] = []
    for number, part in enumerate(content):
        match part.type:
            case "text" | "refusal":
                texts.append(storable(part.text or part.refusal, f"{where}[{number}].text"))
            case "image_url" if part.image_url:
                media.append(image_of(part.image_url.url, f"{where}[{number}].image_url.url"))
            case _:
                raise RefusedError(f"{where}[{number}].type", "must be text or image_url: nothing else is understood")
    return "\n\n".join(texts), tuple(media)
