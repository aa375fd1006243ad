"""What the events of the Anthropic Messages API become: one file of `tests/corpus/anthropic` per habit."""

import json
from pathlib import Path

import pytest

from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.model import FinishReason, StreamEnd, TextDelta, ToolCallEvent, Usage
from tests.marks import promise
from tests.support.corpus import anthropic_bytes, anthropic_files, as_written, decoded, read_stream

FILES = anthropic_files()

QUIRKS = {
    "a plain answer",
    "text and calls mixed",
    "several calls",
    "an empty input",
    "a whole input in the block's start",
    "thinking and its signature",
    "redacted thinking",
    "an answer that is cut",
    "a refusal",
    "tokens of the cache are counted apart",
    "errors inside the stream",
    "a stream that breaks off",
    "an empty answer",
    "what is not known yet",
    "events that are left out",
    "ids missing or not unique",
    "stop_reason disagrees with the calls",
    "fields of the wrong type",
}
"""What is known of the API and of servers that speak it. A file about something else adds its own words here."""


def decoder() -> AnthropicDecoder:
    return AnthropicDecoder("claude", ErrorClassifier())


@promise("Anthropic messages")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_answer_is_understood(path: Path) -> None:
    expected = read_stream(path).events
    events = decoded([anthropic_bytes(path)], decoder())

    assert as_written(events, expected) == expected
    ids = [event.tool_call_id for event in events if isinstance(event, ToolCallEvent)]
    assert len(set(ids)) == len(ids)


@promise("Anthropic messages")
@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_wherever_the_network_cuts_a_stream_the_events_are_the_same(path: Path) -> None:
    expected, body = read_stream(path).events, anthropic_bytes(path)

    for cut in range(1, len(body), 7):
        assert as_written(decoded([body[:cut], body[cut:]], decoder()), expected) == expected, f"cut at byte {cut}"
    assert as_written(decoded([body[n : n + 1] for n in range(len(body))], decoder()), expected) == expected


def test_every_habit_has_a_file() -> None:
    assert {read_stream(path).quirk for path in FILES} == QUIRKS


def test_an_answer_that_is_not_streamed_is_read_all_the_same() -> None:
    whole = decoder()
    content = [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
    ]
    usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
    answer = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}

    assert whole.feed_whole(json.dumps(answer).encode()) + whole.finish() == [
        TextDelta("Let me see."),
        ToolCallEvent("toolu_1", "weather", '{"city":"Oslo"}'),
        StreamEnd(FinishReason.TOOL_CALLS, Usage(7, 3)),
    ]
