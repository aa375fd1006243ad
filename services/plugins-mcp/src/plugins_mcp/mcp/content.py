"""Translates a tool's result into the outcome that the ledger, the engine and the browser keep. Pure.

Outcomes are stored in Redis and in databases, so they are bounded. What is cut here cannot be read later, so a note
says how much was cut.
"""

import json
from collections.abc import Iterator, Sequence
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
from pydantic import BaseModel

from callstream_runtime.long_texts import LOOP_CHARACTERS, exceeds
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

MAX_TEXT_BYTES = 1024 * 1024
"""All text of one outcome together, in UTF-8 bytes."""
MAX_ERROR_CHARS = 2_000
"""Characters of a failed tool's text that become the error's message; the content has all of it."""
EMPTY_RESULT = "The tool returned nothing."
FAILED_WITHOUT_TEXT = "The tool failed and did not say why."


def to_outcome(
    result: CallToolResult, *, max_bytes: int = MAX_TEXT_BYTES, duration_ms: int = 0, attempts: int = 0
) -> ToolOutcome:
    """The terminal outcome for an answer: `succeeded`, or `failed` with the tool's own text if it is an error."""
    blocks = [ours for theirs in result.content for ours in _translated(theirs)]
    if result.structured_content is not None:
        blocks += _structured(blocks, result.structured_content)
    content, truncated = bounded(blocks, max_bytes)
    if left_out := (result.meta or {}).get(LEFT_OUT):
        note = f"[… {left_out:,} of {MAX_BLOCKS + left_out:,} blocks left out: too many to keep …]"
        content, truncated = (*content, TextBlock(note)), True
    error = None
    if result.is_error:
        text = "\n".join(block.text for block in content if isinstance(block, TextBlock) and not block.user_only)
        shown = text if len(text) <= MAX_ERROR_CHARS else f"{text[:MAX_ERROR_CHARS]}…"
        error = ToolError(ErrorCode.TOOL_EXECUTION_FAILED, shown or FAILED_WITHOUT_TEXT)
    elif not content:
        content = (TextBlock(EMPTY_RESULT),)
    return ToolOutcome(
        state=CallState.FAILED if result.is_error else CallState.SUCCEEDED,
        content=content,
        error=error,
        duration_ms=duration_ms,
        attempts=attempts,
        truncated=truncated,
    )


def _structured(blocks: list[ContentBlock], structured: Any) -> Iterator[ContentBlock]:
    """Structured content as JSON, unless a text block holds the same, which servers send for older clients."""
    texts = [block.text for block in blocks if isinstance(block, TextBlock) and not block.user_only]
    # SDKs wrap a value that is not an object in `result`, and send it, or each of its items, as text.
    match structured:
        case {"result": value} if len(structured) == 1:
            repeated = any(_repeats(texts, each) for each in (structured, value))
        case _:
            repeated = _repeats(texts, structured)
    if not repeated:
        yield TextBlock(json.dumps(structured, ensure_ascii=False))


def _repeats(texts: list[str], value: Any) -> bool:
    if any(_is_same(text, value) for text in texts):
        return True
    items = cast("list[Any]", value) if isinstance(value, list) else []
    return bool(items) and len(items) == len(texts) and all(map(_is_same, texts, items))


def _is_same(text: str, value: Any) -> bool:
    if isinstance(value, str):
        return len(text) >= len(value) and (text == value or text == json.dumps(value))
    if exceeds(text.encode(errors="replace"), MAX_VALUES):  # the value has fewer: it was in a message
        return False
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


MAX_ANSWER_BYTES = 32 * 1024 * 1024
"""The largest answer that is read."""
MAX_VALUES = 300_000
"""The most values of a message, with those in its lists and objects and the names of fields. Each becomes an object of
100 bytes and more; while a decoder makes them, no other thread runs: for 50 ms where all names differ."""
MAX_MEDIA_BYTES = 4 * 1024 * 1024
"""All images, sounds and files of one outcome together, decoded."""
MAX_LINK_BYTES = 64 * 1024
"""All links of one outcome together, with their titles and descriptions."""
MAX_BLOCKS = 1_000
LEFT_OUT = "callstream/blocks-left-out"
"""The field of `_meta` with the number of blocks that are left out."""


def bound_blocks(result: dict[str, Any]) -> None:
    """Leave out of a raw result what it has beyond MAX_BLOCKS blocks, before the SDK makes an object of each."""
    for name in ("contents", "messages"):  # of a resource, and of a prompt
        if isinstance(parts := result.get(name), list):
            del parts[MAX_BLOCKS:]
    content = result.get("content")
    if isinstance(content, list) and (left_out := len(cast("list[Any]", content)) - MAX_BLOCKS) > 0:
        del content[MAX_BLOCKS:]
        meta = result.get("_meta")
        result["_meta"] = (cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}) | {LEFT_OUT: left_out}


def size_of(result: CallToolResult) -> int:
    """About how many characters a result has. Counting ends beyond LOOP_CHARACTERS."""
    return characters([result.structured_content, *result.content], LOOP_CHARACTERS)


def characters(values: list[Any], most: int) -> int:
    """About how many characters these values have. Counting ends beyond `most`."""
    size, waiting = 0, [*values]
    while waiting and size <= most:
        size += 1
        part = waiting.pop()
        if isinstance(part, str):
            size += len(part)
        elif isinstance(part, dict):
            waiting += [*cast("dict[str, Any]", part), *cast("dict[str, Any]", part).values()]
        elif isinstance(part, list):
            waiting += cast("list[Any]", part)
        elif isinstance(part, BaseModel):
            waiting += vars(part).values()
    return size


def bounded(blocks: Sequence[ContentBlock], max_bytes: int) -> tuple[tuple[ContentBlock, ...], bool]:
    """The blocks within all bounds, and whether something was cut. `max_bytes` limits their text together."""
    blocks, media_cut = _limit_media(blocks)
    blocks, text_cut = _limit_text(blocks, max_bytes)
    return tuple(blocks), media_cut or text_cut


def _limit_media(blocks: Sequence[ContentBlock]) -> tuple[list[ContentBlock], bool]:
    """Media and links up to their limits, and a note in place of each one beyond them."""
    kept: list[ContentBlock] = []
    media_room, link_room = MAX_MEDIA_BYTES, MAX_LINK_BYTES
    for block in blocks:
        match block:
            case MediaBlock(kind) if (size := block.size) > media_room:
                note = f"[{kind} of {size:,} bytes left out: too large to keep]"
                kept.append(TextBlock(note, block.user_only))
            case MediaBlock():
                media_room -= block.size
                kept.append(block)
            case LinkBlock(uri, name) if (size := _link_bytes(block)) > link_room:
                kept.append(TextBlock(f"[link {name[:200]} ({uri[:200]}) cut: too long to keep]", block.user_only))
            case LinkBlock():
                link_room -= _link_bytes(block)
                kept.append(block)
            case _:
                kept.append(block)
    return kept, any(type(ours) is not type(theirs) for ours, theirs in zip(kept, blocks, strict=True))


def _link_bytes(link: LinkBlock) -> int:
    return sum(len(each.encode()) for each in (link.uri, link.name, link.title or "", link.description or ""))


def _limit_text(blocks: Sequence[ContentBlock], max_bytes: int) -> tuple[list[ContentBlock], bool]:
    """The blocks without the middle of their text, if all their text together is over `max_bytes`."""
    total = sum(len(block.text.encode()) for block in blocks if isinstance(block, TextBlock))
    if total <= max_bytes:
        return list(blocks), False
    head_ends, tail_begins = max_bytes // 2, total - (max_bytes - max_bytes // 2)
    fitted: list[ContentBlock] = []
    begins = 0
    has_note = False
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
        # A character that was cut in two is left out.
        parts = [head.decode("utf-8", "ignore"), tail.decode("utf-8", "ignore")]
        if not has_note:
            gone = f"{tail_begins - head_ends:,} of {total:,} bytes left out"
            parts.insert(1, f"\n[… {gone}: the result is too large to keep, and they are gone …]\n")
            has_note = True
        if text := "".join(parts):
            fitted.append(TextBlock(text, block.user_only))
    return fitted, True
