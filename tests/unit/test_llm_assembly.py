"""Which fragment belongs to which call: one file of `tests/corpus` per habit of a provider, and the general law."""

import itertools
import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog_engine.errors import LLMError, LLMStreamBrokenError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.decoding import is_complete
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.lenient_json import ArgumentsScan, join_arguments
from dialog_engine.llm.openai_decoding import MessageAssembler, OpenAIDecoder
from dialog_engine.llm.openai_wire import CallDelta, Choice, Chunk, Delta, FunctionDelta
from dialog_engine.model import FinishReason, LLMEvent, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent, Usage
from tests.marks import promise
from tests.support.corpus import (
    BadFileError,
    Case,
    HistoryCase,
    PromptCase,
    StreamCase,
    as_written,
    decoded,
    files_of,
    read_case,
    read_stream,
    stream_bytes,
)

FILES, ANTHROPIC = files_of("streams"), files_of("anthropic")
each_habit = pytest.mark.parametrize("path", [*FILES, *ANTHROPIC], ids=lambda path: f"{path.parent.name} {path.stem}")


def read_as(path: Path, reads: list[bytes]) -> list[LLMEvent | LLMError]:
    """In the protocol of that file."""
    return decoded(reads, AnthropicDecoder("claude", ErrorClassifier()) if path in ANTHROPIC else None)


@promise("every known habit of providers is understood")
@promise("Anthropic messages")
@each_habit
def test_a_provider_is_understood(path: Path) -> None:
    expected = read_stream(path).events
    events = read_as(path, [stream_bytes(path)])

    assert as_written(events, expected) == expected
    ids = [event.tool_call_id for event in events if isinstance(event, ToolCallEvent)]
    assert len(set(ids)) == len(ids)


@promise("however a stream is cut, its calls are the same")
@promise("Anthropic messages")
@each_habit
def test_wherever_the_network_cuts_a_stream_the_events_are_the_same(path: Path) -> None:
    expected, body = read_stream(path).events, stream_bytes(path)

    for cut in range(1, len(body), 7 if path in ANTHROPIC else 1):
        assert as_written(read_as(path, [body[:cut], body[cut:]]), expected) == expected, f"cut at byte {cut}"
    assert as_written(read_as(path, [body[n : n + 1] for n in range(len(body))]), expected) == expected


@promise("every known habit of providers is understood")
@pytest.mark.parametrize(("files", "habits"), [(FILES, 24), (ANTHROPIC, 18)], ids=["OpenAI", "Anthropic"])
def test_every_known_habit_has_a_file(files: list[Path], habits: int) -> None:
    assert len({read_stream(path).quirk for path in files}) >= habits


@promise("an error in a recorded provider trace is reported with its file")
def test_every_trace_has_what_is_expected_of_it() -> None:
    traces = {path.stem for path in FILES[0].parent.glob("*.sse")}
    assert traces == {path.stem for path in FILES if read_stream(path).chunks is None}


# --- The law: however complete arguments are cut and interleaved, the same calls come out ----------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text('ab{}[]":,\\ é\n'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "{", "", '"', "b"]), inner),
    max_leaves=6,
)
arguments = st.dictionaries(st.sampled_from(["a", "{", "", '"', "b"]), json_values).map(
    lambda value: msgspec.json.encode(value).decode()
)


@st.composite
def fragmented(draw: st.DrawFn) -> tuple[list[str], list[tuple[int, str]]]:
    """Arguments of some calls, and (call, fragment) pairs of all of them in an interleaved order."""
    texts = draw(st.lists(arguments, min_size=1, max_size=4))
    queues: list[list[tuple[int, str]]] = []
    for call, text in enumerate(texts):
        cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=6)))
        bounds = [0, *cuts, len(text)]
        queues.append([(call, text[a:b]) for a, b in itertools.pairwise(bounds)])
    order: list[tuple[int, str]] = []
    while queue := [queue for queue in queues if queue]:
        order.append(draw(st.sampled_from(queue)).pop(0))
    return texts, order


@promise("however a stream is cut, its calls are the same")
@given(fragmented(), st.booleans())
def test_cutting_and_interleaving_changes_no_call(
    case: tuple[list[str], list[tuple[int, str]]], has_index: bool
) -> None:
    texts, order = case
    assembler = MessageAssembler()
    seen: list[int] = []
    for call, fragment in order:
        first = call not in seen
        if first:
            seen.append(call)
        # Without an index every fragment carries the id, otherwise only the first does.
        call_id = f"id{call}" if first or not has_index else None
        function = FunctionDelta("tool" if first else None, fragment)
        delta = CallDelta(call if has_index else None, call_id, function)
        assert assembler.feed(Chunk([Choice(Delta(tool_calls=[delta]))])) == []
    *calls, end = assembler.finish()

    assert calls == [ToolCallEvent(f"id{call}", "tool", texts[call]) for call in seen]
    assert end == StreamEnd(FinishReason.TOOL_CALLS)


# --- How an answer ends ----------------------------------------------------------------------------------------------

TEXT = b'data: {"choices":[{"delta":{"content":"Hi"}}]}\n\n'
FINISH = b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\n'


def decode(*reads: bytes) -> list[LLMEvent]:
    decoder = OpenAIDecoder(ErrorClassifier())
    return [event for read in reads for event in decoder.feed(read)] + decoder.finish()


@pytest.mark.parametrize("reason", ["error", "network_error", "insufficient_system_resource"])
def test_a_provider_that_gives_up_breaks_the_answer(reason: str) -> None:
    with pytest.raises(LLMStreamBrokenError):
        decode(TEXT, FINISH.replace(b"stop", reason.encode()))


def test_what_is_not_json_breaks_the_answer_rather_than_lose_a_piece_of_it() -> None:
    with pytest.raises(LLMStreamBrokenError):
        decode(TEXT, b'data: {"choices":[{"delta":\n\n', FINISH)


def test_keep_alives_are_no_content() -> None:
    assert decode(b": ping\n\n", b"data:\n\n", b"data: \n\n", b"data: null\n\n", TEXT, FINISH)[0] == TextDelta("Hi")


def test_half_a_surrogate_pair_does_not_reach_anyone() -> None:
    events = decode(TEXT.replace(b"Hi", b"\\ud83d"), TEXT.replace(b"Hi", b"\\ud83d\\ude00"), FINISH)
    assert events[:2] == [TextDelta("?"), TextDelta("\N{GRINNING FACE}")]


def test_deltas_of_one_read_are_merged_in_order() -> None:
    reasoning = TEXT.replace(b"content", b"reasoning")
    assert decode(reasoning * 2 + TEXT * 3 + reasoning, FINISH)[:3] == [
        ReasoningDelta("HiHi"),
        TextDelta("HiHiHi"),
        ReasoningDelta("Hi"),
    ]


def test_an_answer_that_is_not_streamed_is_read_all_the_same() -> None:
    whole = AnthropicDecoder("claude", ErrorClassifier())
    content = [
        {"type": "text", "text": "Let me see."},
        {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Oslo"}},
    ]
    usage = {"input_tokens": 5, "cache_read_input_tokens": 2, "output_tokens": 3}
    answer = {"type": "message", "content": content, "stop_reason": "tool_use", "usage": usage}

    assert whole.feed_whole(json.dumps(answer).encode()) + whole.finish() == [
        TextDelta("Let me see."),
        ToolCallEvent("toolu_1", "weather", '{"city":"Oslo"}'),
        StreamEnd(FinishReason.TOOL_CALLS, Usage(7, 3, cached_tokens=2)),
    ]


# --- Hostile providers: the time is proportional to the answer -------------------------------------------------------


def part(arguments: str, name: str) -> Delta:
    return Delta(tool_calls=[CallDelta(0, None, FunctionDelta(name, arguments))])


WHOLE = [CallDelta(None, str(at), FunctionDelta(str(at), "{}")) for at in range(2_001)]
OTHERS = [CallDelta(None, f"b{at}", FunctionDelta(f"b{at}", "{}")) for at in range(2_001)]


@pytest.mark.parametrize(
    "choices",
    [
        [Choice(part("{}", "t"))] * 4_000,
        [Choice(part("{", "t")), *[Choice(part("a", "u"))] * 4_000],
        [Choice(message=Delta(tool_calls=WHOLE)), Choice(message=Delta(tool_calls=OTHERS))],
    ],
    ids=["an empty object resent", "another name", "whole messages"],
)
def test_a_provider_whose_calls_take_long_to_distinguish_is_refused(choices: list[Choice]) -> None:
    with pytest.raises(LLMStreamBrokenError, match="repeats the names or ids of its calls too often"):
        MessageAssembler().feed(Chunk(choices))


def beginnings(text: str, ends: list[int]) -> list[str]:
    return [*(text[:end] for end in ends), text]


@settings(deadline=None)
@given(
    st.lists(st.text('{}":,a\\ ') | arguments)
    | st.builds(beginnings, arguments, st.lists(st.integers(1, 9), max_size=5).map(sorted))
)
def test_the_scan_excludes_no_complete_arguments(fragments: list[str]) -> None:
    scan = ArgumentsScan()
    for at, fragment in enumerate(fragments):
        scan.add(fragment)
        assert scan.may_be_complete() or not is_complete(join_arguments(fragments[: at + 1]))


# --- A file of the corpus that is written wrongly says which it is, where, and what is wrong ---


STREAM = '{"name": "n", "quirk": "q", "source": "s", "chunks": [], "events": [%s]}'
PROMPT = '{"name": "n", "dialect": "%s", "reply": ["a"], "finish": "%s", "events": [{"end": "stop"}]}'


@promise("an error in a recorded provider trace is reported with its file")
@pytest.mark.parametrize(
    ("kind", "text", "words"),
    [
        (StreamCase, "{not json", "malformed"),
        (StreamCase, '{"name": "n", "quirk": "q", "events": []}', "missing required field `source`"),
        (StreamCase, STREAM.replace("quirk", "habit") % "", "unknown field `habit`"),
        (StreamCase, STREAM % "1", r"Expected `object`, got `int` - at `\$.events\[0\]`"),
        (StreamCase, STREAM % '{"end": "stop"}, {"txt": "a"}', r"`\$.events\[1\]` is none of text"),
        (StreamCase, STREAM % '{"text": "a"}', "the last of its `events`"),
        (StreamCase, STREAM % "", "the last of its `events`"),
        (StreamCase, STREAM.replace('"chunks": [], ', "") % '{"end": "stop"}', "no case.sse beside it"),
        (HistoryCase, '{"name": "n", "quirk": "q", "messages": []}', "missing required field `sent`"),
        (PromptCase, PROMPT % ("xml", "stop"), r"'xml' - at `\$.dialect`"),
        (PromptCase, PROMPT % ("tool_use", "end"), r"'end' - at `\$.finish`"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, kind: type[Case], text: str, words: str) -> None:
    path = tmp_path / "case.json"
    path.write_text(text)
    with pytest.raises(BadFileError, match=words) as caught:
        read_case(path, kind)
    assert "case.json: " in str(caught.value)
    assert "README" in str(caught.value)
