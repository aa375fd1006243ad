"""What a tool returned, in the form that the model, the browser and the ledger keep. Pure."""

import json
from collections.abc import Iterator, Sequence

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

MAX_TEXT_BYTES = 64 * 1024
"""All text of one outcome together, in UTF-8 bytes."""
MAX_MEDIA_BYTES = 4 * 1024 * 1024
"""All images and sounds of one outcome together, decoded."""
NOTHING = "The tool returned nothing."
FAILED_WITHOUT_WORDS = "The tool failed and did not say why."


def to_outcome(
    result: CallToolResult, *, max_bytes: int = MAX_TEXT_BYTES, duration_ms: int = 0, attempts: int = 0
) -> ToolOutcome:
    """The terminal outcome for an answer: `succeeded`, or `failed` with the tool's own words when it says so."""
    blocks, media_left_out = _blocks(result.content)
    structured = result.structured_content
    as_text = json.dumps(structured, ensure_ascii=False) if structured is not None else ""
    if as_text and not any(isinstance(block, TextBlock) for block in blocks):
        blocks.append(TextBlock(as_text))
    structured_left_out = len(as_text.encode()) > max_bytes
    fitted, cut = _fit(blocks, max_bytes)
    truncated = cut or media_left_out or structured_left_out
    if result.is_error:
        words = "\n".join(block.text for block in fitted if isinstance(block, TextBlock))
        state, error = CallState.FAILED, ToolError(ErrorCode.TOOL_EXECUTION_FAILED, words or FAILED_WITHOUT_WORDS)
        content = tuple(block for block in fitted if not isinstance(block, TextBlock))
    else:
        state, error = CallState.SUCCEEDED, None
        content = tuple(fitted) or (TextBlock(NOTHING),)
    return ToolOutcome(
        state=state,
        content=content,
        structured=None if structured_left_out else structured,
        error=error,
        duration_ms=duration_ms,
        attempts=attempts,
        truncated=truncated,
    )


def _blocks(content: Sequence[McpBlock]) -> tuple[list[ContentBlock], bool]:
    """Our blocks for the SDK's, and whether media was left out."""
    blocks: list[ContentBlock] = []
    room = MAX_MEDIA_BYTES
    for block in (ours for theirs in content for ours in _translated(theirs)):
        if isinstance(block, MediaBlock):
            size = len(block.data) * 3 // 4 - block.data[-2:].count("=")
            if size > room:
                blocks.append(TextBlock(f"[{block.mime_type} of {size} bytes left out: too large]"))
                continue
            room -= size
        blocks.append(block)
    left_out = sum(isinstance(block, MediaBlock) for block in blocks)
    return blocks, left_out < sum(_is_media(block) for block in content)


def _is_media(block: McpBlock) -> bool:
    match block:
        case ImageContent() | AudioContent() | EmbeddedResource(resource=BlobResourceContents()):
            return True
        case _:
            return False


def _translated(block: McpBlock) -> Iterator[ContentBlock]:
    match block:
        case TextContent(text=text):
            if text:
                yield TextBlock(text)
        case ImageContent(mime_type=kind, data=data) | AudioContent(mime_type=kind, data=data):
            yield MediaBlock(kind, data)
        case ResourceLink(uri=uri, name=name, mime_type=kind, description=description):
            yield LinkBlock(uri, name, kind, description)
        case EmbeddedResource(resource=BlobResourceContents(mime_type=kind, blob=data)):
            yield MediaBlock(kind or "application/octet-stream", data)
        case EmbeddedResource(resource=TextResourceContents(uri=uri, text=text)):
            yield TextBlock(f"[{uri}]\n{text}")
        case _:
            raise AssertionError(block)  # the union is closed; pyright cannot see into the resource


def _fit(blocks: Sequence[ContentBlock], max_bytes: int) -> tuple[list[ContentBlock], bool]:
    """The blocks with the middle of their text taken out, when all their text together is over `max_bytes`."""
    total = sum(len(block.text.encode()) for block in blocks if isinstance(block, TextBlock))
    if total <= max_bytes:
        return list(blocks), False
    head_ends, tail_begins = max_bytes // 2, total - (max_bytes - max_bytes // 2)
    fitted: list[ContentBlock] = []
    begins = 0
    noted = False
    for block in blocks:
        if not isinstance(block, TextBlock):
            fitted.append(block)
            continue
        data = block.text.encode()
        head, tail = data[: max(0, head_ends - begins)], data[max(0, tail_begins - begins) :]
        begins += len(data)
        if len(head) == len(data) or len(tail) == len(data):
            fitted.append(block)
            continue
        # A character cut in two is left out whole.
        parts = [head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore")]
        if not noted:
            parts.insert(1, f"\n[… {tail_begins - head_ends} bytes left out …]\n")
            noted = True
        if text := "".join(parts):
            fitted.append(TextBlock(text))
    return fitted, True
