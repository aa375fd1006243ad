"""What a tool returned, as it is kept."""

import base64
import tracemalloc
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.types import CallToolResult

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, LinkBlock, MediaBlock, TextBlock, ToolError, ToolOutcome
from plugins_mcp.mcp.content import (
    EMPTY_RESULT,
    FAILED_WITHOUT_TEXT,
    MAX_BLOCKS,
    MAX_ERROR_CHARS,
    MAX_LINK_BYTES,
    MAX_MEDIA_BYTES,
    MAX_VALUES,
    bound_blocks,
    to_outcome,
)
from tests.marks import promise


def result(*content: Any, **fields: Any) -> CallToolResult:
    return CallToolResult.model_validate({"content": list(content), **fields})


def text(value: str) -> dict[str, Any]:
    return {"type": "text", "text": value}


def link(**fields: Any) -> dict[str, Any]:
    return {"type": "resource_link", "uri": "f://a", "name": "a", **fields}


def resource(**fields: Any) -> dict[str, Any]:
    return {"type": "resource", "resource": {"uri": "f://a", **fields}}


def image(size: int) -> dict[str, Any]:
    return {"type": "image", "mimeType": "image/png", "data": base64.b64encode(b"x" * size).decode()}


@promise("results of every content type are kept, and cut to head and tail")
@pytest.mark.parametrize(
    ("block", "kept"),
    [
        (text("hi"), TextBlock("hi")),
        ({"type": "image", "mimeType": "image/png", "data": "QUJD"}, MediaBlock("image/png", "QUJD")),
        ({"type": "audio", "mimeType": "audio/wav", "data": "QUJD"}, MediaBlock("audio/wav", "QUJD")),
        (link(mimeType="x/y", description="d"), LinkBlock("f://a", "a", "x/y", "d")),
        (link(title="A", size=7), LinkBlock("f://a", "a", title="A", size=7)),
        (resource(text="body"), TextBlock("[f://a]\nbody")),
        (resource(mimeType="text/css", text="body"), TextBlock("[f://a, text/css]\nbody")),
        (resource(blob="QUJD"), MediaBlock("application/octet-stream", "QUJD", "f://a")),
        (resource(mimeType="image/gif", blob="QUJD"), MediaBlock("image/gif", "QUJD", "f://a")),
        (text("u") | {"annotations": {"audience": ["user"]}}, TextBlock("u", user_only=True)),
        (text("b") | {"annotations": {"audience": ["user", "assistant"]}}, TextBlock("b")),
        (text("a") | {"annotations": {"audience": ["assistant"]}}, TextBlock("a")),
        (text("p") | {"annotations": {"priority": 0.5}}, TextBlock("p")),
        (image(1) | {"annotations": {"audience": ["user"]}}, MediaBlock("image/png", "eA==", user_only=True)),
    ],
)
def test_each_kind_of_content_is_kept(block: Any, kept: Any) -> None:
    outcome = to_outcome(result(block), duration_ms=5, attempts=2)
    assert outcome == ToolOutcome(CallState.SUCCEEDED, (kept,), duration_ms=5, attempts=2)


@promise("structured content is sent once")
@pytest.mark.parametrize(
    ("texts", "structured", "added"),
    cast(
        "list[tuple[list[str], Any, str]]",
        [
            (['{"a":"\\u00fc"}'], {"a": "ü"}, ""),
            (['{\n  "a": "ü"\n}'], {"a": "ü"}, ""),
            (["See:", '{"a": "ü"}'], {"a": "ü"}, ""),
            (["12"], {"result": 12}, ""),
            (["twelve"], {"result": "twelve"}, ""),
            (['{"result": "twelve"}'], {"result": "twelve"}, ""),
            (["1", "two", '{"n": 3}'], {"result": [1, "two", {"n": 3}]}, ""),
            (["[1]"], {"result": [1]}, ""),
            ([], {"a": "ü"}, '{"a": "ü"}'),
            (["a is ü"], {"a": "ü"}, '{"a": "ü"}'),
            (["1"], True, "true"),
            (["1", "2"], {"result": [1, 3]}, '{"result": [1, 3]}'),
            (["1"], {"result": 1, "unit": "m"}, '{"result": 1, "unit": "m"}'),
            ([], 0, "0"),
            ([], False, "false"),
            ([], "", '""'),
            ([], [], "[]"),
            ([], {}, "{}"),
        ],
    ),
)
def test_structured_content_follows_the_text_unless_that_repeats_it(
    texts: list[str], structured: Any, added: str
) -> None:
    outcome = to_outcome(result(*map(text, texts), structuredContent=structured))
    assert outcome.content == tuple(map(TextBlock, [*texts, added] if added else texts))


def test_a_text_of_more_values_than_structured_content_can_have_becomes_no_objects() -> None:
    answer = result(text("[" + "[]," * MAX_VALUES + "[]]"), structuredContent={"a": 1})
    tracemalloc.start()
    try:
        assert len(to_outcome(answer).content) == 2
        assert tracemalloc.get_traced_memory()[1] < 10_000_000
    finally:
        tracemalloc.stop()


def test_structured_content_goes_to_the_model_when_the_text_is_for_the_user_only() -> None:
    for_user = text('{"a": 1}') | {"annotations": {"audience": ["user"]}}
    outcome = to_outcome(result(for_user, structuredContent={"a": 1}))
    assert outcome.content == (TextBlock('{"a": 1}', user_only=True), TextBlock('{"a": 1}'))


@promise("an empty result is said to be empty")
@pytest.mark.parametrize("content", [(), (text(""),)])
def test_an_empty_result_gets_a_text_that_says_so(content: Any) -> None:
    assert to_outcome(result(*content)).content == (TextBlock(EMPTY_RESULT),)


def test_a_failure_carries_the_words_of_the_tool_and_its_message_their_beginning() -> None:
    outcome = to_outcome(result(text("no"), image(1), text("way"), isError=True))
    assert outcome.state is CallState.FAILED
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message) == (ErrorCode.TOOL_EXECUTION_FAILED, "no\nway")
    assert [type(block) for block in outcome.content] == [TextBlock, MediaBlock, TextBlock]
    silent = to_outcome(result(isError=True)).error
    assert silent is not None
    assert silent.message == FAILED_WITHOUT_TEXT
    for_user = text("for the user") | {"annotations": {"audience": ["user"]}}
    outcome = to_outcome(result(for_user, text("x" * 10_000), isError=True))
    assert outcome.content == (TextBlock("for the user", user_only=True), TextBlock("x" * 10_000))
    assert outcome.error == ToolError(ErrorCode.TOOL_EXECUTION_FAILED, "x" * MAX_ERROR_CHARS + "…")


def test_more_pieces_than_can_be_kept_are_counted() -> None:
    answer: dict[str, Any] = {"content": [text("x")] * (MAX_BLOCKS + 5), "_meta": {"own": 1}}
    bound_blocks(answer)
    assert len(answer["content"]) == MAX_BLOCKS  # before the SDK makes an object of each
    outcome = to_outcome(CallToolResult.model_validate(answer))
    assert len(outcome.content) == MAX_BLOCKS + 1
    assert outcome.content[-1] == TextBlock("[… 5 of 1,005 blocks left out: too many to keep …]")
    assert outcome.truncated


def test_links_over_the_cap_are_named() -> None:
    outcome = to_outcome(result(link(), link(description="d" * MAX_LINK_BYTES), link()))
    assert [type(block) for block in outcome.content] == [LinkBlock, TextBlock, LinkBlock]
    assert outcome.content[1] == TextBlock("[link a (f://a) cut: too long to keep]")
    assert outcome.truncated


def test_media_over_the_cap_is_replaced_by_a_note() -> None:
    outcome = to_outcome(result(image(100), image(MAX_MEDIA_BYTES), image(200)))
    assert [type(block) for block in outcome.content] == [MediaBlock, TextBlock, MediaBlock]
    assert f"{MAX_MEDIA_BYTES:,}" in str(outcome.content[1])
    assert outcome.truncated


@promise("results of every content type are kept, and cut to head and tail")
def test_long_text_keeps_its_head_and_its_tail() -> None:
    outcome = to_outcome(result(text("a" * 50 + "b" * 100 + "c" * 50)), max_bytes=100)
    gone = "\n[… 100 of 200 bytes left out: the result is too large to keep, and they are gone …]\n"
    assert outcome.content == (TextBlock("a" * 50 + gone + "c" * 50),)
    assert outcome.truncated


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
        assert len("".join(kept).encode()) <= max_bytes + 120
        head, _, rest = "".join(kept).partition("\n[… ")
        assert whole.startswith(head)
        assert whole.endswith(rest.partition(" …]\n")[2])
    assert msgspec.json.decode(msgspec.json.encode(outcome), type=ToolOutcome) == outcome
