"""Requests of the Vercel AI SDK: what `useChat` posts, and what its user asks with that. Pure."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal, cast

import msgspec
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from callstream_runtime.long_texts import exceeds
from dialog_engine.chat.client_calls import GivenResult
from dialog_engine.facades.images import RefusedError, check_number, image_of
from dialog_engine.facades.openai.request import MAX_VALUES
from dialog_engine.http.bodies import ToolsRequest, UnicodeText, unicode_text
from dialog_engine.http.client_calls import MAX_RESULTS, ClientToolRequest
from dialog_engine.tool_calls.approvals.rules import MAX_REASON
from dialog_engine.tool_calls.client_tools import MAX_TOOLS, outcome_of
from plugins_contract.outcomes import MediaBlock, TextBlock

MAX_ID = 200
MAX_PARTS = 10_000
"""Of one message. An answer has a few for each of its calls."""


class Posted(BaseModel):
    """A part of what `useChat` posts. Fields that have no meaning here are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True)


class PostedApproval(Posted):
    """What the user was asked, and has answered."""

    id: UnicodeText
    approved: bool = False
    reason: Annotated[UnicodeText, Field(max_length=MAX_REASON)] = ""


class PostedPart(Posted):
    """A part of a message: text, a file, or a tool call with its state."""

    type: str
    text: UnicodeText = ""
    url: str = ""
    filename: str = ""
    state: str = ""
    approval: PostedApproval | None = None
    tool_call_id: UnicodeText = ""
    provider_executed: bool | None = None
    output: Any = None
    error_text: UnicodeText = ""

    @property
    def is_result(self) -> bool:
        """Whether it has the result of a tool that the page has run."""
        return self.state in ("output-available", "output-error") and not self.provider_executed

    def given(self) -> GivenResult:
        """The result. Raises RefusedError."""
        failed = self.state == "output-error"
        try:
            text = self.error_text if failed else _text_of(self.output)
        except ValueError as error:
            raise RefusedError("messages", f"an output cannot be stored: {error}") from None
        return GivenResult(self.tool_call_id, outcome_of([TextBlock(text)], is_error=failed))


class PostedMessage(Posted):
    """A message as the client has it. One of the assistant has the id of its turn."""

    id: UnicodeText
    role: Literal["system", "user", "assistant"]
    parts: Annotated[list[PostedPart], Field(max_length=MAX_PARTS, fail_fast=True)]


def _counting(messages: Any) -> Any:
    """What counts of a conversation: its last message, and the id of the answer before that. The rest, which may be
    long, is not read."""
    if not isinstance(messages, list):
        return messages
    given = cast("list[Any]", messages)
    answer = next((each for each in reversed(given[:-1]) if _is_answer(each)), None)
    before: list[Any] = [{**answer, "parts": []}] if answer else []
    return [*before, *given[-1:]]


def _is_answer(message: Any) -> bool:
    return isinstance(message, dict) and cast("dict[str, Any]", message).get("role") == "assistant"


class PostedChat(Posted):
    """What `useChat` posts."""

    id: Annotated[UnicodeText, Field(min_length=1, max_length=MAX_ID, description="A name, or the id of a session.")]
    messages: Annotated[list[PostedMessage], Field(min_length=1), BeforeValidator(_counting)]
    trigger: Literal["submit-message", "regenerate-message"] = "submit-message"
    message_id: UnicodeText | None = None
    model: UnicodeText | None = None
    tool_mode: UnicodeText | None = None
    tools: ToolsRequest | None = None
    client_tools: Annotated[list[ClientToolRequest], Field(max_length=MAX_TOOLS)] | None = None

    @property
    def answered(self) -> Sequence[PostedApproval]:
        """What the user has said to the requests for approval in the last message."""
        return [part.approval for part in self._parts if part.state == "approval-responded" and part.approval]

    @property
    def results(self) -> Sequence[PostedPart]:
        """What the tools of the page have returned, in the last message; the newest."""
        return [part for part in self._parts if part.is_result][-MAX_RESULTS:]

    @property
    def _parts(self) -> Sequence[PostedPart]:
        """The parts of the last message, if it goes on with the answer."""
        last = self.messages[-1]
        return last.parts if last.role == "assistant" and self.trigger == "submit-message" else []


def read_chat(body: bytes) -> PostedChat:
    """Read the JSON of a request, in time proportional to its length.

    Raises:
        RequestValidationError: it is not valid.
        RefusedError: it has too many values.
    """
    if exceeds(body, MAX_VALUES):
        raise RefusedError("body", f"the conversation has more than {MAX_VALUES} values: send its last message only")
    try:
        return PostedChat.model_validate_json(body)
    except ValidationError as error:
        found = error.errors(include_url=False)
        raise RequestValidationError([{**each, "loc": ("body", *each["loc"])} for each in found]) from None


def question_of(message: PostedMessage) -> tuple[str, tuple[MediaBlock, ...]]:
    """The text and the images of a user's message.

    Raises:
        RefusedError: it has neither, or a file that is no such image. The text names it.
    """
    text = "\n\n".join(part.text for part in message.parts if part.type == "text")
    files = [(number, part) for number, part in enumerate(message.parts) if part.type == "file"]
    check_number(files, "messages")
    media = tuple(_image(number, part) for number, part in files)
    if not text.strip() and not media:
        raise RefusedError("messages", "the last message has no text")
    return text, media


def _image(number: int, part: PostedPart) -> MediaBlock:
    where = f"parts[{number}]"
    try:
        return image_of(part.url, where)
    except RefusedError as error:
        name = f" ({part.filename[:MAX_ID]})" if part.filename else ""
        raise RefusedError(where, f"the file in {where} of the last message{name} {error}") from None


def _text_of(output: Any) -> str:
    """What a tool has returned, as the model reads it. Raises ValueError for what is no Unicode text."""
    return unicode_text(output if isinstance(output, str) else msgspec.json.encode(output).decode())
