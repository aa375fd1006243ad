"""Calls as tags in text: replies of models, one per file of `tests/corpus/prompt`, cut into pieces in every way."""

import json
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.model import ChatEvent, FinishReason, ReasoningDelta, StreamEnd, TextDelta, ToolCallEvent
from tests.marks import promise
from tests.support.corpus import PromptCase, files_of, read_case
from tests.support.fakes.engine import text_of
from tests.support.tags import BLOCKS, DIALECTS, calls_of, cut, read

LONGEST_TAG = 24
"""A limit is tried at each of so many characters from a `<` on."""


class Case:
    def __init__(self, path: Path) -> None:
        written = read_case(path, PromptCase)
        self.dialect = DIALECTS[written.dialect]
        self.reply = "\n".join(written.reply)
        self.finish = FinishReason(written.finish)
        self.repeats = written.repeats
        self.events = written.events

    def read(self, *places: int) -> list[ChatEvent]:
        return self.read_as(cut(self.reply, *places))

    def read_as(self, pieces: list[str], finish: FinishReason | None = None) -> list[ChatEvent]:
        return read(self.dialect, pieces, finish or self.finish, may_quote_results=self.repeats)


CASES = {path.stem: Case(path) for path in files_of("prompt")}
NAMES = [*CASES]
GROUPS = [NAMES[at : at + 12] for at in range(0, len(NAMES), 12)]
each_group = pytest.mark.parametrize("names", GROUPS, ids=lambda names: f"{names[0]} and following")


@promise("prompt mode: both dialects and <tool_call>, no argument dropped, safe at every split, no tag ever shown")
@each_group
def test_each_reply_of_the_corpus_gives_its_events(names: list[str]) -> None:
    for name in names:
        case = CASES[name]
        whole = case.read()
        assert [as_written(event, case) for event in whole] == case.events, name
        assert case.read(*range(1, len(case.reply))) == whole, name


def as_written(event: ChatEvent, case: Case) -> dict[str, Any]:
    """The event as the corpus writes it. Of the problem of a call, the part that the corpus names."""
    match event:
        case TextDelta(text):
            return {"text": text}
        case ReasoningDelta(text):
            return {"reasoning": text}
        case StreamEnd(reason):
            return {"end": str(reason)}
        case ToolCallEvent(name=name, arguments=arguments, problem=problem):
            expected = [each["call"] for each in case.events if "call" in each and each["call"]["name"] == name]
            as_text = any(arguments == each["arguments"] for each in expected)
            call = {"name": name, "arguments": arguments if as_text else json.loads(arguments)}
            if problem:
                named = [
                    each["problem"] for each in expected if each.get("problem", "") in problem and "problem" in each
                ]
                call["problem"] = named[0] if named else problem
            return {"call": call}
        case _:
            raise AssertionError(f"an unexpected event: {event}")


@promise("prompt mode: both dialects and <tool_call>, no argument dropped, safe at every split, no tag ever shown")
@each_group
def test_no_part_of_a_tag_is_shown_when_a_limit_cuts_a_reply_off(names: list[str]) -> None:
    for name in names:
        case = CASES[name]
        shown = text_of(case.read())
        if shown == case.reply:
            continue  # there are no tags in it
        for length in range(len(case.reply)):
            if length - case.reply.rfind("<", 0, length) > LONGEST_TAG:
                continue
            so_far = text_of(case.read_as([case.reply[:length]], FinishReason.LENGTH))
            assert shown.startswith(so_far) or "<thinking".startswith(so_far.lstrip()), (name, length)


QUOTED = {
    "backticks over lines": "So:\n`\n{}\n`",
    "backticks that open a paragraph": "`For example:\n{}\nand so on`",
    "two backticks around one": "``a ` b\n{}\n``",
    "backticks in a quotation": "> `a\n> {}\n> `",
    "backticks without an end, in the same paragraph": "`a\n{}",
    "indented code": "So:\n\n    {}\n\nand so on",
    "indented code at the beginning": "    {}\n",
    "code indented by a tab": "So:\n\n\t{}",
    "the second line of indented code": "So:\n\n    first\n\n    {}",
    "indented code behind a heading": "# So\n    {}",
    "indented code behind a fence": "```\na\n```\n    {}",
    "indented code in a list": "1. So:\n\n       {}",
    "indented code behind a list": "- a\n\nSo:\n\n    {}",
    "indented code in a quotation": "> So:\n>\n>     {}",
    "a comment": "<!-- {} -->",
    "a comment over lines": "So: <!--\n{}\n-->",
    "a comment over paragraphs": "<!-- a\n\n{}\n\n-->",
    "a comment that interrupts backticks": "It`s\n<!--\n\n{}\n-->",
    "a comment without an end": "<!--\n\n{}",
}
NOT_QUOTED = {
    "a backtick in the paragraph before": "It`s so.\n\n{}",
    "backticks that were closed on a later line": "`a\nb` so:\n{}",
    "a fence that was closed": "```\n`\n```\n{}",
    "an indented line of a paragraph": "So:\n    {}",
    "a block in the text of a list item": "- So:\n\n    {}",
    "a block in the text of a nested item": "- a\n  - So:\n\n      {}",
    "a comment that was closed": "<!-- ` -->\n{}",
    "a comment in code": "Write `<!--` first.\n{}",
    "an arrow": "a --> b\n{}",
}


@pytest.mark.parametrize("how", [*QUOTED, *NOT_QUOTED])
@pytest.mark.parametrize("dialect", BLOCKS)
def test_a_call_that_markdown_quotes_is_text(dialect: str, how: str) -> None:
    text = (QUOTED | NOT_QUOTED)[how].replace("{}", BLOCKS[dialect])
    for pieces in ([text], [*text]):
        events = read(DIALECTS[dialect], pieces)
        assert len(calls_of(events)) == (how in NOT_QUOTED)
        assert how in NOT_QUOTED or text_of(events) == text
