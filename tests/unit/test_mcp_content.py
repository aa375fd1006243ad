"""What a tool returned, as it is kept."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, LinkBlock, MediaBlock, TextBlock, ToolOutcome
from plugins_mcp.mcp.content import FAILED_WITHOUT_WORDS, MAX_MEDIA_BYTES, NOTHING, to_outcome


def result(*content: Any, **fields: Any) -> CallToolResult:
    return CallToolResult.model_validate({"content": list(content), **fields})


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def image(size: int) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"x" * size).decode()}


@pytest.mark.parametrize(
    ("block", "kept"),
    [
        (text("hi"), TextBlock("hi")),
        ({"type": "image", "mimeType": "image/png", "data": "QUJD"}, MediaBlock("image/png", "QUJD")),
        ({"type": "audio", "mimeType": "audio/wav", "data": "QUJD"}, MediaBlock("audio/wav", "QUJD")),
        (
            {"type": "resource_link", "uri": "f://a", "name": "a", "mimeType": "x/y", "description": "d"},
            LinkBlock("f://a", "a", "x/y", "d"),
        ),
        ({"type": "resource", "resource": {"uri": "f://a", "text": "body"}}, TextBlock("[f://a]\nbody")),
        (
            {"type": "resource", "resource": {"uri": "f://a", "blob": "QUJD"}},
            MediaBlock("application/octet-stream", "QUJD"),
        ),
    ],
)
def test_each_kind_of_content_is_kept(block: Any, kept: Any) -> None:
    outcome = to_outcome(result(block), duration_ms=5, attempts=2)
    assert outcome == ToolOutcome(CallState.SUCCEEDED, (kept,), duration_ms=5, attempts=2)


def test_structured_content_is_kept_and_told_when_there_is_no_text() -> None:
    structured = {"a": "ü"}
    alone = to_outcome(result(structuredContent=structured))
    assert (alone.structured, alone.content) == (structured, (TextBlock('{"a": "ü"}'),))
    beside = to_outcome(result(text("a is ü"), structuredContent=structured))
    assert (beside.structured, beside.content) == (structured, (TextBlock("a is ü"),))


@pytest.mark.parametrize("falsy", [0, False, "", [], {}])
def test_structured_content_that_looks_like_nothing_is_something(falsy: Any) -> None:
    outcome = to_outcome(result(structuredContent=falsy))
    assert outcome.structured == falsy
    assert outcome.content != (TextBlock(NOTHING),)


def test_structured_content_that_is_too_large_is_cut_like_text() -> None:
    outcome = to_outcome(result(structuredContent={"a": "x" * 1000}), max_bytes=100)
    assert outcome.structured is None
    assert outcome.truncated
    assert "bytes left out" in str(outcome.content)


@pytest.mark.parametrize("content", [(), (text(""),)])
def test_nothing_is_said_to_be_nothing(content: Any) -> None:
    assert to_outcome(result(*content)).content == (TextBlock(NOTHING),)


def test_a_failure_carries_the_words_of_the_tool() -> None:
    outcome = to_outcome(result(text("no"), image(1), text("way"), isError=True))
    assert outcome.state is CallState.FAILED
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == (ErrorCode.TOOL_EXECUTION_FAILED, "no\nway")
    assert [type(block) for block in outcome.content] == [MediaBlock]
    silent = to_outcome(result(isError=True)).error
    assert silent is not None
    assert silent.message == FAILED_WITHOUT_WORDS


def test_media_over_the_cap_is_replaced_by_a_note() -> None:
    outcome = to_outcome(result(image(100), image(MAX_MEDIA_BYTES), image(200)))
    assert [type(block) for block in outcome.content] == [MediaBlock, TextBlock, MediaBlock]
    assert str(MAX_MEDIA_BYTES) in str(outcome.content[1])
    assert outcome.truncated


def test_long_text_keeps_its_head_and_its_tail() -> None:
    outcome = to_outcome(result(text("a" * 50 + "b" * 100 + "c" * 50)), max_bytes=100)
    assert outcome.content == (TextBlock("a" * 50 + "\n[… 100 bytes left out …]\n" + "c" * 50),)
    assert outcome.truncated


def test_text_that_just_fits_is_not_touched() -> None:
    outcome = to_outcome(result(text("ü" * 50)), max_bytes=100)
    assert outcome.content == (TextBlock("ü" * 50),)
    assert not outcome.truncated


def test_blocks_wholly_in_the_middle_vanish_and_others_stay_in_their_place() -> None:
    blocks = [text("head"), text("x" * 500), image(1), text("y" * 500), text("tail")]
    outcome = to_outcome(result(*blocks), max_bytes=20)
    assert outcome.content[0] == TextBlock("head")
    assert outcome.content[-1] == TextBlock("tail")
    assert [type(block) for block in outcome.content] == [TextBlock, TextBlock, MediaBlock, TextBlock, TextBlock]
    assert str(outcome.content).count("left out") == 1


@given(st.lists(st.text(), max_size=5), st.integers(0, 60))
def test_cut_text_fits_splits_no_character_and_says_so(texts: list[str], max_bytes: int) -> None:
    outcome = to_outcome(result(*map(text, texts)), max_bytes=max_bytes)
    kept = [block.text for block in outcome.content if isinstance(block, TextBlock)]
    whole = "".join(texts)
    assert outcome.truncated == (len(whole.encode()) > max_bytes)
    if outcome.truncated:
        assert len("".join(kept).encode()) <= max_bytes + 60
        head, _, rest = "".join(kept).partition("\n[… ")
        assert whole.startswith(head)
        assert whole.endswith(rest.partition(" …]\n")[2])
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=ToolOutcome) == outcome
