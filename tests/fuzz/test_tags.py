"""Rules that hold of any reply of a model that writes its calls as tags."""

import json
import re
from collections.abc import Sequence
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from dialog_engine.model import ChatEvent, FinishReason, ReasoningDelta, ToolCallEvent
from dialog_engine.tool_calls.prompt_mode.dialect import Dialect
from dialog_engine.tool_calls.prompt_mode.reply import RESULT_OPENERS
from tests.fuzz.limits import FUZZ, TIMES, processor_time
from tests.fuzz.tagged_replies import built, noise
from tests.marks import promise
from tests.support.fakes.engine import text_of
from tests.support.tags import DIALECTS, KNOWN, calls_of, cut, read

_THOUGHT = re.compile(r"(\s*)<(think|thinking)>(.*?)(?:</\2>|\Z)(.*)\Z", re.DOTALL)
_NAMES = "|".join(sorted(KNOWN))
_CALL = {
    "tool_use": re.compile(rf"<tool_use>\s*<name>\s*(?:{_NAMES})\s*</name>\s*(?:<arguments>|</tool_use>)"),
    "function_calls": re.compile(rf"<function_calls>\s*<invoke name=([\"'])(?:{_NAMES})\1\s*>"),
}
_RESULT = re.compile(r"<tool_use_result>\s*<(?:name|result)>|<function_results>\s*<result>")
_OPENERS = {"tool_use": ("<tool_use", "<tool_call>"), "function_calls": ("<function_calls>", "<invoke", "<tool_call>")}
_ATTRIBUTES = r"""(\s+[\w.:-]+\s*=\s*("[^"]*"|'[^']*'))*(\s*[\w.:-]+\s*(=\s*("[^"]*|'[^']*)?)?)?\s*/?"""
_OBJECT = r'\{\s*"?\w*"?\s*:?\s*"?'
_HALF = {
    "tool_use": re.compile(
        rf"<tool_use((?=\s){_ATTRIBUTES})?>?\s*(<\w*|<name>\s*(</?\w*)?|{_OBJECT})?|<tool_call>\s*{_OBJECT}"
    ),
    "function_calls": re.compile(
        rf"<function_calls>\s*<\w*\s*|(<function_calls>\s*)?<invoke{_ATTRIBUTES}|<tool_call>\s*{_OBJECT}"
    ),
}
"""Half a call that ends before its name begins: the model hears of all others."""
_CUT = (FinishReason.LENGTH, FinishReason.CONTENT_FILTER)


@promise("prompt mode: both dialects and <tool_call>, no argument dropped, safe at every split, no tag ever shown")
@settings(FUZZ, max_examples=100 * TIMES)
@given(st.randoms(use_true_random=False))
def test_replies_with_tags_keep_every_rule(random: Random) -> None:
    with processor_time():
        attempt(random)


def attempt(random: Random) -> None:
    """Two replies of each dialect. Raises AssertionError if a rule does not hold."""
    for dialect in DIALECTS.values():
        reply, finish = noise(random), random.choice([FinishReason.STOP, FinishReason.STOP, *_CUT])
        repeats = random.random() < 0.5
        events = read(dialect, [reply], finish, may_quote_results=repeats)
        _text_is_kept(dialect, reply, finish, events)
        _no_result_is_shown(events)
        _however_it_is_cut(dialect, reply, finish, events, random, repeats=repeats)
        _no_part_of_a_call_runs(dialect, reply, random)
        _what_was_built_comes_out(dialect, random)


def _text_is_kept(dialect: Dialect, reply: str, finish: FinishReason, events: Sequence[ChatEvent]) -> None:
    """All that is not reasoning is shown, up to the first call, and none of it is a call."""
    thought = _THOUGHT.match(reply)
    text, reasoning = (thought[1] + thought[4], thought[3]) if thought else (reply, "")
    shown = text_of(events)
    assert "".join(event.text for event in events if isinstance(event, ReasoningDelta)) == reasoning, reply
    if any(opener in reply for opener in RESULT_OPENERS):
        rest = iter(text)
        assert all(character in rest for character in shown), reply
    else:
        assert text.startswith(shown), reply
        if calls_of(events):
            assert text[len(shown) :].startswith(_OPENERS[dialect.name]), reply
        elif finish not in _CUT:
            assert shown == text or _HALF[dialect.name].fullmatch(text[len(shown) :]), reply
    if "`" not in shown and "~" not in shown:
        found = _CALL[dialect.name].search(shown)
        assert not found or found.end() - found.start() > 900, reply
    assert all(call.name and call.tool_call_id for call in calls_of(events)), reply


def _no_result_is_shown(events: Sequence[ChatEvent]) -> None:
    """Nothing that looks like a result of ours is shown, but in code."""
    shown = text_of(events)
    if "`" not in shown and "~" not in shown:
        assert not _RESULT.search(shown), shown


def _however_it_is_cut(
    dialect: Dialect, reply: str, finish: FinishReason, events: Sequence[ChatEvent], random: Random, *, repeats: bool
) -> None:
    """The pieces in which a reply comes make no difference."""
    places = [random.randint(0, len(reply)) for _ in range(random.randint(1, 12))]
    assert read(dialect, cut(reply, *places), finish, may_quote_results=repeats) == events, (places, reply)
    assert read(dialect, list(reply), finish, may_quote_results=repeats) == events, reply


def _no_part_of_a_call_runs(dialect: Dialect, reply: str, random: Random) -> None:
    """Wherever a limit cuts a reply, what could run of it are calls of the whole reply, in their order."""
    whole = [(call.name, call.arguments) for call in calls_of(read(dialect, [reply]))]
    place = random.randint(0, len(reply))
    for reason in _CUT:
        part = [(c.name, c.arguments) for c in calls_of(read(dialect, [reply[:place]], reason)) if _runnable(c)]
        calls = iter(whole)
        assert all(call in calls for call in part), (place, reply)


def _runnable(call: ToolCallEvent) -> bool:
    if call.problem:
        return False
    try:
        return isinstance(json.loads(call.arguments or "{}"), dict)
    except ValueError:
        return False


def _what_was_built_comes_out(dialect: Dialect, random: Random) -> None:
    """No call is lost, doubled or changed, and the text before the calls is exactly what it was."""
    case = built(dialect.name, random)
    places = [random.randint(0, len(case.reply)) for _ in range(5)]
    events = read(dialect, cut(case.reply, *places), may_quote_results=case.repeats)
    assert text_of(events) == case.text, case.reply
    calls = calls_of(events)
    if case.invented:
        assert [(call.name, bool(call.problem)) for call in calls] == [(case.invented, True)], case.reply
        return
    assert [(call.name, json.loads(call.arguments or "{}")) for call in calls] == list(case.calls), case.reply
    assert not any(call.problem for call in calls), case.reply
    assert len({call.tool_call_id for call in calls}) == len(calls), case.reply
