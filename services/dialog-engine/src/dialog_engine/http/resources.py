"""Routes of what servers offer beside tools: resources, prompts, and completions of their arguments."""

from http import HTTPStatus
from typing import Annotated, Any, TypeVar

import msgspec
from fastapi import APIRouter, Depends, Query
from pydantic import Field

from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.audit import AuditAction, AuditEvent
from dialog_engine.http import described
from dialog_engine.http.bodies import Body, UnicodeText
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.requests import Engine, Sender, large_answer
from dialog_engine.http.services import Services
from dialog_engine.identity.principal import Principal
from dialog_engine.tool_calls.ports import ToolDirectory
from dialog_engine.tool_calls.resource_tools import usable
from plugins_contract.catalog import PromptEntry, ResourceEntry, ServerCatalog
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import MediaBlock, TextBlock, ToolOutcome
from plugins_contract.reads import (
    MAX_URI_CHARS,
    PROMPT,
    RESOURCE,
    Completed,
    PromptRead,
    ReadKind,
    ResourceRead,
    unusable_uri,
)

MAX_LISTED = 1_000
MAX_ARGUMENTS = 100

_STATUS = {
    ErrorCode.INVALID_ARGUMENTS: HTTPStatus.UNPROCESSABLE_ENTITY,
    ErrorCode.OVERLOADED: HTTPStatus.SERVICE_UNAVAILABLE,
    ErrorCode.TIMEOUT: HTTPStatus.GATEWAY_TIMEOUT,
}
"""What is answered to the failure of a read; anything else is 502."""

T = TypeVar("T", bound=msgspec.Struct)

router = APIRouter(prefix="/v1", tags=["resources"])

Server = Annotated[str, Query(min_length=1, max_length=200, description="The name of the server.")]
Sought = Annotated[str, Query(max_length=200, description="Only those whose name, title or address has this text.")]
Limit = Annotated[int, Query(ge=1, le=MAX_LISTED)]
After = Annotated[int, Query(ge=0, le=1_000_000, description="The `nextCursor` of the page before.")]


@router.get("/resources", dependencies=[Depends(large_answer)])
async def resources(
    engine: Engine, sender: Sender, server: str = "", query: Sought = "", limit: Limit = 100, after: After = 0
) -> Any:
    """Resources and templates of resources (RFC 6570) that the sender may read. `more` counts those after this page,
    `leftOut` those that servers list beyond what is kept."""
    catalogs = usable(_visible(engine, sender), server)
    found = [(each.server, entry) for each in catalogs for entry in each.resources if _fits(query, entry, entry.uri)]
    listed = [{"server": name, **_resource(entry)} for name, entry in found[after : after + limit]]
    return {"resources": listed, **_rest(len(found), after + limit, catalogs)}


@router.get("/prompts", dependencies=[Depends(large_answer)])
async def prompts(
    engine: Engine, sender: Sender, server: str = "", query: Sought = "", limit: Limit = 100, after: After = 0
) -> Any:
    """Prompts that the sender may use, with their arguments. `more` and `leftOut` as of resources."""
    catalogs = usable(_visible(engine, sender), server)
    found = [(each.server, entry) for each in catalogs for entry in each.prompts if _fits(query, entry)]
    listed = [{"server": name, **_prompt(entry)} for name, entry in found[after : after + limit]]
    return {"prompts": listed, **_rest(len(found), after + limit, catalogs)}


@router.get("/resources/content", responses=described.NOT_FOUND, dependencies=[Depends(large_answer)])
async def content(
    engine: Engine, sender: Sender, server: Server, uri: Annotated[str, Query(max_length=MAX_URI_CHARS)]
) -> dict[str, Any]:
    """Read a resource: one that is listed, fits a template, or was named by a result. Data are base64; `leftOut` is how
    many bytes of a text are missing because it is too large, and `note` stands in the place of data that are."""
    if wrong := unusable_uri(uri):
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", wrong, field="uri")
    outcome = await _read(engine, sender, ReadKind.RESOURCE, server, RESOURCE + uri, {})
    read = _decoded(outcome, ResourceRead)
    blocks = outcome.content[1:]
    parts: list[dict[str, Any]] = []
    for each in read.contents:
        part: dict[str, Any] = {"uri": each.uri, "mimeType": each.mime_type}
        match blocks[each.block] if each.block is not None and each.block < len(blocks) else None:
            case MediaBlock(data=data):
                part["blob"] = data
            case TextBlock(text=note):
                part["note"] = note
            case _:
                part |= {"text": each.text or ""} | ({"leftOut": each.left_out} if each.left_out else {})
        parts.append(part)
    return {"server": server, "contents": parts, "ttlMs": read.ttl_ms, "cacheScope": read.cache_scope}


Arguments = Annotated[dict[UnicodeText, UnicodeText], Field(max_length=MAX_ARGUMENTS)]


class PromptRequest(Body):
    """A prompt of a server, with its arguments."""

    server: UnicodeText
    name: UnicodeText
    arguments: Arguments = Field(default_factory=dict)


@router.post("/prompts/get", responses=described.BODY | described.NOT_FOUND, dependencies=[Depends(large_answer)])
async def get_prompt(body: PromptRequest, engine: Engine, sender: Sender) -> dict[str, Any]:
    """The messages of a prompt. They are text of the server: the user looks at them before they are sent."""
    outcome = await _read(engine, sender, ReadKind.PROMPT, body.server, PROMPT + body.name, dict(body.arguments))
    read = _decoded(outcome, PromptRead)
    return {"server": body.server, "name": body.name, "description": read.description, "messages": read.messages}


class CompletionRequest(Body):
    """An argument of a prompt, or of a template of resources, that is being typed."""

    server: UnicodeText
    prompt: UnicodeText | None = None
    resource: Annotated[UnicodeText, Field(max_length=MAX_URI_CHARS, description="A template.")] | None = None
    name: UnicodeText
    value: Annotated[UnicodeText, Field(max_length=MAX_URI_CHARS)] = ""
    given: Arguments = Field(default_factory=dict, description="The arguments that have a value already.")


@router.post("/prompts/complete", responses=described.BODY | described.NOT_FOUND)
async def complete(body: CompletionRequest, engine: Engine, sender: Sender) -> dict[str, Any]:
    """Values for the argument; none where the server completes nothing."""
    if (body.prompt is None) == (body.resource is None):
        why = "send either prompt or resource"
        raise ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "INVALID_REQUEST", why, field="prompt")
    name = PROMPT + body.prompt if body.prompt is not None else f"{RESOURCE}{body.resource}"
    arguments = {"name": body.name, "value": body.value, "given": dict(body.given)}
    outcome = await _read(engine, sender, ReadKind.COMPLETION, body.server, name, arguments, optional=True)
    read = _decoded(outcome, Completed) if outcome.error is None else Completed()
    return {"values": read.values, "total": read.total, "hasMore": read.has_more}


def _visible(engine: Services, sender: Principal) -> ToolDirectory:
    return engine.tools.visible_to(sender.subject, sender.roles)


def _fits(query: str, entry: ResourceEntry | PromptEntry, *more: str) -> bool:
    return not query or any(query.lower() in text.lower() for text in (entry.name, entry.title or "", *more))


def _rest(found: int, shown: int, catalogs: list[ServerCatalog]) -> dict[str, int | None]:
    more = max(0, found - shown)
    return {"more": more, "nextCursor": shown if more else None, "leftOut": sum(each.left_out for each in catalogs)}


def _resource(entry: ResourceEntry) -> dict[str, Any]:
    return {
        "uri": entry.uri,
        "name": entry.name,
        "title": entry.title,
        "description": entry.description,
        "mimeType": entry.mime_type,
        "template": entry.template,
    }


def _prompt(entry: PromptEntry) -> dict[str, Any]:
    fields = [{"name": each.name, "description": each.description, "required": each.required} for each in entry.fields]
    return {"name": entry.name, "title": entry.title, "description": entry.description, "arguments": fields}


async def _read(
    engine: Services,
    sender: Principal,
    kind: ReadKind,
    server: str,
    name: str,
    arguments: dict[str, Any],
    *,
    optional: bool = False,
) -> ToolOutcome:
    """The outcome of a read that the sender may make; with `optional` also where the server does not know it.

    Raises:
        ProblemError: it has none. What the sender may not read is answered as what is not there.
    """
    missing = ErrorCode.PROMPT_NOT_FOUND if name.startswith(PROMPT) else ErrorCode.RESOURCE_NOT_FOUND
    tools = _visible(engine, sender)
    if not tools.allows(server, name):
        await _refused(engine, sender, server, name)
        raise _not_found(missing, f"server {server!r} has nothing of that name")
    known = usable(tools, server) if server else []
    if not known or (kind is ReadKind.PROMPT and not any(PROMPT + each.name == name for each in known[0].prompts)):
        raise _not_found(missing, f"server {server!r} has nothing of that name")
    try:
        outcome = await engine.reads.read(kind, server, name, arguments, subject=sender.subject, roles=sender.roles)
    except RedisUnavailable:
        detail = "Redis is not available, by which workers are asked"
        headers = {"Retry-After": "5"}
        raise ProblemError(HTTPStatus.SERVICE_UNAVAILABLE, ErrorCode.NETWORK_ERROR, detail, headers=headers) from None
    error = outcome.error
    if error is None or (optional and error.code is ErrorCode.DISABLED):
        return outcome
    if error.code is ErrorCode.PERMISSION_DENIED:
        await _refused(engine, sender, server, name)
    if error.code in (missing, ErrorCode.PERMISSION_DENIED):
        raise _not_found(missing, f"server {server!r} has nothing of that name")
    raise ProblemError(_STATUS.get(error.code, HTTPStatus.BAD_GATEWAY), error.code, error.message)


async def _refused(engine: Services, sender: Principal, server: str, name: str) -> None:
    refused = AuditEvent(AuditAction.READ_REFUSED, sender.subject, key_id=sender.key_id, server=server, tool=name)
    await engine.audit.record(refused)


def _decoded(outcome: ToolOutcome, kind: type[T]) -> T:
    first = outcome.content[0] if outcome.content else None
    try:
        return msgspec.json.decode(first.text if isinstance(first, TextBlock) else b"", type=kind)
    except msgspec.DecodeError:
        detail = "the answer of the worker cannot be read: its RESULT_MAX_BYTES may be too small for it"
        raise ProblemError(HTTPStatus.BAD_GATEWAY, ErrorCode.UNKNOWN_ERROR, detail) from None


def _not_found(code: ErrorCode, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.NOT_FOUND, code, detail)
