"""Calls as tags in text: one file of `tests/corpus/prompt` per habit of a model, cut in every way."""

import itertools
import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import ChatEvent, FinishReason, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent
from dialog_engine.tool_calls.tagged_reply import TaggedReply
from tests.support.corpus import prompt_files, read_prompt
from tests.support.tags import DIALECTS, KNOWN, TOOLS, cut, read, text_of

SHORT = 120
"""Characters of a reply that is cut at every pair of places."""


class Case:
    """One file of the corpus."""

    def __init__(self, path: Path) -> None:
        written = read_prompt(path)
        self.dialect = DIALECTS[written.dialect]
        self.reply = "\n".join(written.reply)
        self.finish = FinishReason(written.finish)
        self.repeats = written.repeats
        self.events = written.events

    def read(self, *places: int) -> list[ChatEvent]:
        return self.read_as(cut(self.reply, *places))

    def read_as(self, pieces: list[str], finish: FinishReason | None = None) -> list[ChatEvent]:
        return read(self.dialect, pieces, finish or self.finish, repeats=self.repeats)


READ = {path.stem: Case(path) for path in prompt_files()}
CASES = [pytest.param(case, id=name) for name, case in READ.items()]
TAGGED = [pytest.param(case, id=name) for name, case in READ.items() if text_of(case.read()) != case.reply]


@pytest.mark.parametrize("case", CASES)
def test_a_habit_is_understood(case: Case) -> None:
    events = case.read()
    assert len(events) == len(case.events)
    for event, expected in zip(events, case.events, strict=True):
        match event:
            case TextDelta(text):
                assert expected == {"text": text}
            case ReasoningDelta(text):
                assert expected == {"reasoning": text}
            case ToolCallEvent():
                check(event, expected["call"])
            case _:
                assert isinstance(event, StreamEnd)
                assert expected == {"end": str(event.finish_reason)}


def check(call: ToolCallEvent, expected: dict[str, Any]) -> None:
    whole = not isinstance(expected["arguments"], str)
    assert call.name == expected["name"]
    assert (json.loads(call.arguments) if whole else call.arguments) == expected["arguments"]
    assert bool(call.problem) == ("problem" in expected)
    assert expected.get("problem", "") in call.problem


@pytest.mark.parametrize("case", CASES)
def test_every_place_to_cut_it_gives_the_same(case: Case) -> None:
    whole = case.read()
    for place in range(1, len(case.reply)):
        assert case.read(place) == whole, place
    assert case.read(*range(1, len(case.reply))) == whole
    if len(case.reply) <= SHORT:
        for pair in itertools.combinations(range(1, len(case.reply)), 2):
            assert case.read(*pair) == whole, pair


@given(st.data())
def test_any_two_replies_in_a_row_cut_anyhow_give_the_same(data: st.DataObject) -> None:
    cases = data.draw(st.lists(st.sampled_from([*READ.values()]), min_size=1, max_size=2))
    case = cases[0]
    reply = "".join(each.reply for each in cases)
    places = data.draw(st.sets(st.integers(1, max(1, len(reply) - 1)), max_size=12))
    assert case.read_as(cut(reply, *places)) == case.read_as([reply])


@pytest.mark.parametrize("case", TAGGED)
def test_wherever_a_limit_cuts_a_reply_no_part_of_a_tag_is_shown(case: Case) -> None:
    shown = text_of(case.read())
    for length in range(len(case.reply)):
        so_far = text_of(case.read_as([case.reply[:length]], FinishReason.LENGTH))
        assert shown.startswith(so_far) or "<thinking".startswith(so_far.lstrip()), length


# --- What reading costs ----------------------------------------------------------------------------------------------

COSTLY = {
    "text": ("tool_use", "", "Hello wide world. "),
    "brackets": ("tool_use", "", "<p>a < b</p> "),
    "openers": ("tool_use", "", "say `<tool_use> "),
    "arguments": ("tool_use", "<tool_use><name>write</name><arguments>", '"a", '),
    "quotes missing": ("tool_use", "", '<tool_use><name>now</name><arguments>{"a: 1}</arguments></tool_use>\n'),
    "closers in text": ("function_calls", '<invoke name="write"><parameter name="path">', "a </parameter> b "),
    "results": ("tool_use", "", "<tool_use_result><name>now</name><result>a < b</result>"),
    "result": ("tool_use", "<tool_use_result><result>", "a < b </"),
    "openers of results": ("tool_use", "", "<tool_use_result>\n"),
    "white space": ("function_calls", '<invoke name="write"><parameter name="path">a</parameter>', "          "),
}


@pytest.mark.parametrize("kind", COSTLY)
def test_the_cost_of_reading_grows_with_the_length_of_a_reply_and_no_faster(kind: str) -> None:
    dialect, start, text = COSTLY[kind]

    def seconds(length: int) -> float:
        reply = start + text * (length // len(text))
        pieces = [TextDelta(reply[at : at + 4]) for at in range(0, len(reply), 4)]
        tagged = TaggedReply(DIALECTS[dialect].grammar(TOOLS), KNOWN, lambda: "id", repeats=True)
        began = time.process_time()
        for piece in [*pieces, StreamEnd(FinishReason.STOP)]:
            tagged.read(piece)
        tagged.end()
        return time.process_time() - began

    # Reading anything twice would make it 256 times.
    assert seconds(320_000) < 100 * min(seconds(20_000), seconds(20_000))
