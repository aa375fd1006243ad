"""Reads resources, prompts and completions, as the results that calls of tools have."""

from collections.abc import Iterable
from typing import Any, cast

import msgspec
from mcp import ClientSession, MCPError
from mcp import types as sdk

from plugins_contract.errors import ErrorCode
from plugins_contract.reads import PROMPT, RESOURCE, Completed, Part, PromptRead, ReadKind, ResourceRead
from plugins_mcp.mcp.watched import Watched

MAX_TEXT_BYTES = 512 * 1024
"""All text of a resource together, and the JSON of a prompt."""
MAX_PARTS = 100
MAX_VALUES = 100
_NOT_FOUND = -32002  # of the protocols before 2026
_MISSING = ("unknown resource", "unknown prompt", "not found", "no such")


async def read(
    session: ClientSession,
    kind: ReadKind,
    name: str,
    arguments: dict[str, Any],
    meta: sdk.RequestParamsMeta | None,
    watched: Watched,
) -> sdk.CallToolResult | sdk.InputRequiredResult:
    """What `name`, a `resource:` or a `prompt:`, has to say. A resource is watched from now on. Raises the SDK's
    errors."""
    match kind:
        case ReadKind.RESOURCE:
            uri = name.removeprefix(RESOURCE)
            async with watched.read(uri):
                resource = await session.read_resource(uri, meta=meta, allow_input_required=True)
            return _of_resource(resource) if isinstance(resource, sdk.ReadResourceResult) else resource
        case ReadKind.PROMPT:
            texts = {key: str(value) for key, value in arguments.items()}
            prompt = await session.get_prompt(name.removeprefix(PROMPT), texts, meta=meta, allow_input_required=True)
            return _of_prompt(prompt) if isinstance(prompt, sdk.GetPromptResult) else prompt
        case ReadKind.COMPLETION:
            argument = {key: str(arguments.get(key, "")) for key in ("name", "value")}
            given = {key: str(value) for key, value in cast("dict[str, Any]", arguments.get("given") or {}).items()}
            return _of_completion(await session.complete(_reference(name), argument, given or None))


def code_of(kind: ReadKind, code: int, message: str) -> ErrorCode:
    """What the error of a server means for a read."""
    missing = code in (sdk.METHOD_NOT_FOUND, _NOT_FOUND) or any(each in message.lower() for each in _MISSING)
    if kind is ReadKind.COMPLETION:
        return ErrorCode.DISABLED if code == sdk.METHOD_NOT_FOUND else ErrorCode.INVALID_ARGUMENTS
    if missing or (kind is ReadKind.RESOURCE and code == sdk.INVALID_PARAMS):
        return ErrorCode.RESOURCE_NOT_FOUND if kind is ReadKind.RESOURCE else ErrorCode.PROMPT_NOT_FOUND
    return ErrorCode.INVALID_ARGUMENTS if code == sdk.INVALID_PARAMS else ErrorCode.TOOL_EXECUTION_FAILED


def _reference(name: str) -> sdk.PromptReference | sdk.ResourceTemplateReference:
    if name.startswith(PROMPT):
        return sdk.PromptReference(type="ref/prompt", name=name.removeprefix(PROMPT))
    return sdk.ResourceTemplateReference(type="ref/resource", uri=name.removeprefix(RESOURCE))


def _of_resource(result: sdk.ReadResourceResult) -> sdk.CallToolResult:
    parts: list[Part] = []
    data: list[sdk.EmbeddedResource] = []
    room = MAX_TEXT_BYTES
    for each in result.contents[:MAX_PARTS]:
        if isinstance(each, sdk.BlobResourceContents):
            parts.append(Part(uri=each.uri, mime_type=each.mime_type, block=len(data)))
            data.append(sdk.EmbeddedResource(type="resource", resource=each))
            continue
        text = each.text.encode(errors="replace")
        kept = text[: max(room, 0)]
        room -= len(kept)
        shown = kept.decode("utf-8", "ignore")
        parts.append(Part(uri=each.uri, mime_type=each.mime_type, text=shown, left_out=len(text) - len(kept)))
    # Older servers say nothing of caches, and the SDK then has its defaults.
    read = ResourceRead(contents=tuple(parts), ttl_ms=result.ttl_ms, cache_scope=result.cache_scope)
    return _result(read, data)


def _of_prompt(result: sdk.GetPromptResult) -> sdk.CallToolResult:
    messages = tuple(each.model_dump(by_alias=True, exclude_none=True, mode="json") for each in result.messages)
    read = PromptRead(description=result.description, messages=messages)
    if len(msgspec.json.encode(read)) > MAX_TEXT_BYTES:
        raise MCPError(sdk.INTERNAL_ERROR, f"the prompt has more than {MAX_TEXT_BYTES} bytes")
    return _result(read)


def _of_completion(result: sdk.CompleteResult) -> sdk.CallToolResult:
    found = result.completion
    values = tuple(each[:2_000] for each in found.values[:MAX_VALUES])
    more = bool(found.has_more) or len(found.values) > MAX_VALUES
    return _result(Completed(values=values, total=found.total, has_more=more))


def _result(read: msgspec.Struct, data: Iterable[sdk.EmbeddedResource] = ()) -> sdk.CallToolResult:
    text = sdk.TextContent(type="text", text=msgspec.json.encode(read).decode())
    return sdk.CallToolResult(content=[text, *data])
