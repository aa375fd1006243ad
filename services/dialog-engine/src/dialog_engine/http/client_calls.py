"""Tools that requests bring, and the routes by which clients send the results of their calls."""

from base64 import b64decode
from binascii import Error
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Request
from msgspec.structs import replace
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from dialog_engine.chat.archive import CallRecord
from dialog_engine.chat.client_calls import GivenResult
from dialog_engine.errors import ClientToolsNotNowError
from dialog_engine.http import described
from dialog_engine.http.bodies import Body, UnicodeText
from dialog_engine.http.repetition import Answering, answering
from dialog_engine.http.requests import Engine, Sender, about_found, large_answer
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Brought, ClientTool
from dialog_engine.tool_calls import client_tools
from dialog_engine.tool_calls.results.steps import outcome_details, status_of
from plugins_contract.choice import ToolChoice
from plugins_contract.outcomes import ContentBlock, LinkBlock, MediaBlock, TextBlock

MAX_BLOCKS = 1_000
"""Of one result."""
MAX_RESULTS = 256
"""Of one request."""

router = APIRouter(prefix="/v1", tags=["turns"])


class ClientToolRequest(Body):
    """A tool that the client runs itself."""

    name: UnicodeText
    description: UnicodeText = ""
    input_schema: Annotated[dict[str, Any], Field(description="JSON Schema of the arguments, an object.")]

    def tool(self) -> ClientTool:
        """The tool as a value of the core."""
        return ClientTool(self.name, self.description, self.input_schema)


def with_tools(
    sent: Sequence[ClientToolRequest],
    brought: Brought,
    engine: Services,
    sender: Principal,
    choice: ToolChoice | None,
) -> Brought:
    """What a message brings, with the tools that its native request has sent.

    Raises:
        ClientToolError: they cannot be offered, such as for the name of a tool that its sender may use.
        ClientToolsNotNowError: engines are being updated.
    """
    if sent:
        brought = replace(brought, tools=tuple(each.tool() for each in sent))
    ours = engine.tools.visible_to(sender.subject, sender.roles, choice).tools()
    client_tools.check(brought.tools, {tool.name for tool in ours})
    if not engine.client_tools():
        raise ClientToolsNotNowError
    return brought


class _Mcp(BaseModel):
    """A part of MCP's content. Fields that have no meaning here are ignored."""

    model_config = ConfigDict(alias_generator=to_camel, strict=True)


def _base64(data: str) -> str:
    try:
        b64decode(data, validate=True)
    except (Error, ValueError):
        raise ValueError("must be base64") from None
    return data


Base64 = Annotated[str, AfterValidator(_base64)]


class TextContent(_Mcp):
    """Text."""

    type: Literal["text"]
    text: UnicodeText

    def block(self) -> ContentBlock:
        """The content as a value of the core; so for the others."""
        return TextBlock(self.text)


class MediaContent(_Mcp):
    """An image or a sound."""

    type: Literal["image", "audio"]
    data: Base64
    mime_type: UnicodeText

    def block(self) -> ContentBlock:
        return MediaBlock(self.mime_type, self.data)


class LinkContent(_Mcp):
    """A resource that is named only."""

    type: Literal["resource_link"]
    uri: UnicodeText
    name: UnicodeText
    title: UnicodeText | None = None
    description: UnicodeText | None = None
    mime_type: UnicodeText | None = None
    size: int | None = None

    def block(self) -> ContentBlock:
        return LinkBlock(self.uri, self.name, self.mime_type, self.description, self.title, self.size)


class TextResource(_Mcp):
    """The text of a resource."""

    uri: UnicodeText
    mime_type: UnicodeText | None = None
    text: UnicodeText

    def block(self) -> ContentBlock:
        kind = f", {self.mime_type}" if self.mime_type else ""
        return TextBlock(f"[{self.uri}{kind}]\n{self.text}")


class DataResource(_Mcp):
    """The data of a resource."""

    uri: UnicodeText
    mime_type: UnicodeText | None = None
    blob: Base64

    def block(self) -> ContentBlock:
        return MediaBlock(self.mime_type or "application/octet-stream", self.blob, self.uri)


class ResourceContent(_Mcp):
    """A resource with its content."""

    type: Literal["resource"]
    resource: TextResource | DataResource

    def block(self) -> ContentBlock:
        return self.resource.block()


Content = Annotated[TextContent | MediaContent | LinkContent | ResourceContent, Field(discriminator="type")]


class ResultRequest(Body):
    """What the client's tool has returned."""

    content: Annotated[
        UnicodeText | Annotated[list[Content], Field(max_length=MAX_BLOCKS)],
        Field(description="A text, or content as in a tool result of MCP."),
    ]
    is_error: Annotated[bool, Field(description="Whether the tool has failed; `content` says why.")] = False

    def given(self, call_id: str) -> GivenResult:
        """The result as a value of the core."""
        blocks = [TextBlock(self.content)] if isinstance(self.content, str) else [each.block() for each in self.content]
        return GivenResult(call_id, client_tools.outcome_of(blocks, is_error=self.is_error))


class NamedResultRequest(ResultRequest):
    """The result of one of several calls."""

    tool_call_id: Annotated[UnicodeText, Field(description="The `toolCallId` of the call, or its `correlationId`.")]


class ResultsRequest(Body):
    """The results of several calls of a turn."""

    results: Annotated[list[NamedResultRequest], Field(min_length=1, max_length=MAX_RESULTS)]


_ANSWERS = described.BODY | described.NOT_FOUND | described.CONFLICT


@router.post(
    "/turns/{turn_id}/tool-calls/{tool_call_id}/result", responses=_ANSWERS, dependencies=[Depends(large_answer)]
)
async def result(
    turn_id: str,
    tool_call_id: str,
    body: ResultRequest,
    engine: Engine,
    sender: Sender,
    sent: Answering,
    request: Request,
) -> dict[str, Any]:
    """Send the result of a call of a tool that the request has brought; the turn goes on when it was the last one."""
    await about_found(request, engine, sender.subject, turn_id)
    given = [body.given(tool_call_id)]
    async with answering(sent, engine, sender.subject, turn_id) as answer_key:
        [record] = await engine.client_calls.answer(sender.subject, turn_id, given, sender.key_id, answer_key)
    return {"turnId": turn_id} | _view(turn_id, record)


@router.post("/turns/{turn_id}/tool-results", responses=_ANSWERS, dependencies=[Depends(large_answer)])
async def results(
    turn_id: str, body: ResultsRequest, engine: Engine, sender: Sender, sent: Answering, request: Request
) -> dict[str, Any]:
    """Send the results of several calls: all of them are taken, or none."""
    await about_found(request, engine, sender.subject, turn_id)
    given = [each.given(each.tool_call_id) for each in body.results]
    async with answering(sent, engine, sender.subject, turn_id) as answer_key:
        records = await engine.client_calls.answer(sender.subject, turn_id, given, sender.key_id, answer_key)
    return {"turnId": turn_id, "results": [_view(turn_id, each) for each in records]}


def _view(turn_id: str, record: CallRecord) -> dict[str, Any]:
    call, outcome = record.call, record.outcome
    ids = {"toolCallId": call.tool_call_id, "correlationId": call.correlation_id}
    return ids | (
        {"status": status_of(outcome), **outcome_details(turn_id, call.correlation_id, outcome)} if outcome else {}
    )
