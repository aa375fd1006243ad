"""What a tool returned, in the form that the model, the browser and the ledger keep. Pure."""

import json
from collections.abc import Iterator
from typing import Any, cast

from mcp.types import (
    AudioContent,
    BlobResourceContents,
    CallToolResult,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    TextResourceContents,
)
from mcp.types import ContentBlock as McpBlock

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import (
    CallState,
    ContentBlock,
    LinkBlock,
    MediaBlock,
    TextBlock,
    ToolError,
    ToolOutcome,
)
from plugins_mcp.mcp.bounds import bounded

MAX_TEXT_BYTES = 1024 * 1024
"""All text of one outcome together, in UTF-8 bytes."""
MAX_WORDS = 2_000
"""Characters of what a tool says of its failure that become the error's message; the content has all of it."""
NOTHING = "The tool returned nothing."
FAILED_WITHOUT_WORDS = "The tool failed and did not say why."


def to_outcome(
    result: CallToolResult, *, max_bytes: int = MAX_TEXT_BYTES, duration_ms: int = 0, attempts: int = 0
) -> ToolOutcome:
    """The terminal outcome for an answer: `succeeded`, or `failed` with the tool's own words when it says so."""
    blocks = [ours for theirs in result.content for ours in _translated(theirs)]
    if result.structured_content is not None:
        blocks += _beside(blocks, result.structured_content)
    content, truncated = bounded(blocks, max_bytes)
    error = None
    if result.is_error:
        words = "\n".join(block.text for block in content if isinstance(block, TextBlock) and not block.user_only)
        shown = words if len(words) <= MAX_WORDS else f"{words[:MAX_WORDS]}…"
        error = ToolError(ErrorCode.TOOL_EXECUTION_FAILED, shown or FAILED_WITHOUT_WORDS)
    elif not content:
        content = (TextBlock(NOTHING),)
    return ToolOutcome(
        state=CallState.FAILED if result.is_error else CallState.SUCCEEDED,
        content=content,
        error=error,
        duration_ms=duration_ms,
        attempts=attempts,
        truncated=truncated,
    )


def _beside(blocks: list[ContentBlock], structured: Any) -> Iterator[ContentBlock]:
    """Structured content as JSON, unless the text says the same already, as servers do for older clients."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock) and not block.user_only]
    # SDKs put a value that is no object under this name, and tell it, or each item of it, as text.
    match structured:
        case {"result": value} if len(structured) == 1:
            said = any(_says(texts, each) for each in (structured, value))
        case _:
            said = _says(texts, structured)
    if not said:
        yield TextBlock(json.dumps(structured, ensure_ascii=False))


def _says(texts: list[str], value: Any) -> bool:
    if any(_is(text, value) for text in texts):
        return True
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and len(items) == len(texts) and all(map(_is, texts, items))


def _is(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return text == value or text == json.dumps(value)
    try:
        read = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return read == value and type(read) is type(value)


def _translated(block: McpBlock) -> Iterator[ContentBlock]:
    for_user = block.annotations is not None and block.annotations.audience == ["user"]
    match block:
        case TextContent(text=text):
            if text:
                yield TextBlock(text, for_user)
        case ImageContent(mime_type=kind, data=data) | AudioContent(mime_type=kind, data=data):
            yield MediaBlock(kind, data, None, for_user)
        case ResourceLink(uri=uri, name=name, mime_type=kind, description=description, title=title, size=size):
            yield LinkBlock(uri, name, kind, description, title, size, for_user)
        case EmbeddedResource(resource=BlobResourceContents(uri=uri, mime_type=kind, blob=data)):
            yield MediaBlock(kind or "application/octet-stream", data, uri, for_user)
        case EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type=kind, text=text)):
            yield TextBlock(f"[{uri}, {kind}]\n{text}" if kind else f"[{uri}]\n{text}", for_user)
        case _:
            raise AssertionError(block)  # the union is closed; pyright cannot see into the resource
