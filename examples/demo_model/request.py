"""Validates a chat-completions request as strictly as a real provider, and converts it into a Conversation."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Annotated, Any, Literal, cast

from pydantic import BaseModel, Field, ValidationError

from examples.demo_model.conversation import Arguments, Conversation, Outcome, Tool

MODEL_ID = "demo-scripted"


class BadRequestError(Exception):
    """The request is not valid; `param` names the wrong field."""

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None, status: int = 400) -> None:
        self.message = f"{param}: {message}" if param else message
        self.param, self.code, self.status = param, code, status
        super().__init__(self.message)


class Part(BaseModel):
    type: str
    text: str = ""


Content = str | list[Part] | None


class FunctionCall(BaseModel):
    name: str
    arguments: str = ""


class ToolCall(BaseModel):
    id: str
    function: FunctionCall


class InstructionMessage(BaseModel):
    role: Literal["system", "developer"]
    content: Content = None


class UserMessage(BaseModel):
    role: Literal["user"]
    content: Content


class AssistantMessage(BaseModel):
    role: Literal["assistant"]
    content: Content = None
    tool_calls: list[ToolCall] | None = None


class ToolMessage(BaseModel):
    role: Literal["tool"]
    content: Content
    tool_call_id: str


Message = Annotated[InstructionMessage | UserMessage | AssistantMessage | ToolMessage, Field(discriminator="role")]


class OfferedFunction(BaseModel):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None


class OfferedTool(BaseModel):
    type: Literal["function"] = "function"
    function: OfferedFunction


class NamedFunction(BaseModel):
    name: str


class ToolChoice(BaseModel):
    function: NamedFunction


class StreamOptions(BaseModel):
    include_usage: bool = False


class CompletionRequest(BaseModel):
    """The fields that the script uses; others, such as the temperature, are accepted and ignored."""

    model: str
    messages: list[Message] = Field(min_length=1)
    tools: list[OfferedTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice = "auto"
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    max_tokens: int | None = Field(default=None, ge=1)
    max_completion_tokens: int | None = Field(default=None, ge=1)

    @property
    def token_limit(self) -> int | None:
        return self.max_completion_tokens or self.max_tokens


def parse_request(body: bytes) -> CompletionRequest:
    """Parse and validate a request body. Raises BadRequestError, which names the first wrong field."""
    try:
        request = CompletionRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise BadRequestError(first["msg"], param=_field_name(first["loc"]) or None) from None
    if request.model != MODEL_ID:
        message = f"The model {request.model!r} does not exist; the only one here is {MODEL_ID!r}"
        raise BadRequestError(message, param="model", code="model_not_found", status=404)
    _check_tool_results(request.messages)
    return request


def conversation_of(request: CompletionRequest) -> Conversation:
    """The part of a validated request that the script needs."""
    messages = request.messages
    last_user = max((at for at, message in enumerate(messages) if isinstance(message, UserMessage)), default=-1)
    question = text_of(messages[last_user].content) if last_user >= 0 else ""
    earlier, since = messages[: max(last_user, 0)], messages[last_user + 1 :]
    return Conversation(
        question=question,
        rounds=tuple(_rounds(since)),
        tools=tuple(_offered(request)),
        introduced=any(isinstance(message, AssistantMessage) and text_of(message.content) for message in earlier),
    )


def text_of(content: Content) -> str:
    if isinstance(content, list):
        return "\n".join(part.text for part in content if part.text)
    return content or ""


def _check_tool_results(messages: Sequence[Message]) -> None:
    """Check that each call has one result, directly after its message: real providers answer 400 otherwise."""
    open_calls: list[str] = []
    for at, message in enumerate(messages):
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in open_calls:
                wrong = f"no preceding 'tool_calls' has the id {message.tool_call_id!r}, or it was answered already"
                raise BadRequestError(wrong, param=f"messages[{at}].tool_call_id")
            open_calls.remove(message.tool_call_id)
            continue
        _refuse_open_calls(open_calls, before=at)
        if isinstance(message, AssistantMessage):
            open_calls = [call.id for call in message.tool_calls or ()]
            if not open_calls and message.content is None:
                raise BadRequestError("required where there are no tool_calls", param=f"messages[{at}].content")
    _refuse_open_calls(open_calls, before=len(messages))


def _refuse_open_calls(open_calls: Sequence[str], *, before: int) -> None:
    if open_calls:
        wrong = f"every id in 'tool_calls' must be answered by a tool message first; missing: {', '.join(open_calls)}"
        raise BadRequestError(wrong, param=f"messages[{before}]")


def _rounds(messages: Iterable[Message]) -> Iterator[tuple[Outcome, ...]]:
    """The rounds of calls in these messages, each with its outcomes in the order of the calls."""
    calls: list[ToolCall] = []
    results: dict[str, str] = {}
    for message in messages:
        match message:
            case AssistantMessage(tool_calls=list() as calls):
                results = {}
            case ToolMessage(tool_call_id=call_id):
                results[call_id] = text_of(message.content)
                if len(results) == len(calls):
                    yield tuple(
                        Outcome(call.function.name, _arguments(call.function.arguments), results[call.id])
                        for call in calls
                    )
            case _:
                pass


def _arguments(text: str) -> Arguments:
    """The arguments of a call in the history; anything but a JSON object counts as no arguments."""
    try:
        arguments: object = json.loads(text or "{}")
    except json.JSONDecodeError:
        return {}
    return cast("Arguments", arguments) if isinstance(arguments, dict) else {}


def _offered(request: CompletionRequest) -> Iterator[Tool]:
    if request.tool_choice == "none":
        return
    only = request.tool_choice.function.name if isinstance(request.tool_choice, ToolChoice) else None
    for offered in request.tools or ():
        function = offered.function
        if only is None or function.name == only:
            yield Tool(function.name, function.description or "", function.parameters or {"type": "object"})


def _field_name(location: tuple[int | str, ...]) -> str:
    """The path of a field, as in `messages[0].content`; names of union members are left out."""
    steps = [step for step in location if isinstance(step, int) or (step not in _UNION_MEMBERS and "[" not in step)]
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).lstrip(".")


_UNION_MEMBERS = {"system", "developer", "user", "assistant", "tool", "str", "ToolChoice"}
