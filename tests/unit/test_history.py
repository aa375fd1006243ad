"""Short-term memory: the newest whole turns, within both bounds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.service import window
from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from dialog_engine.tokens import tokens_of_message

CALL = ToolCall("1", "id", "a__b", "{}")


def turn(number: int, *rest: Message) -> list[Message]:
    return [UserMessage(f"question {number}"), *rest, AssistantMessage(f"answer {number}")]


def seen(messages: list[Message], max_messages: int = 100, max_tokens: int = 10_000) -> list[Message]:
    return list(window(messages, max_messages=max_messages, max_tokens=max_tokens))


def test_everything_is_kept_while_it_fits() -> None:
    said = [*turn(1), *turn(2)]

    assert seen(said) == said


@pytest.mark.parametrize(("limit", "kept"), [(6, 3), (5, 2), (4, 2), (3, 1), (2, 1)])
def test_turns_are_kept_whole_or_not_at_all(limit: int, kept: int) -> None:
    turns = [turn(1), turn(2), turn(3)]

    assert seen([m for t in turns for m in t], max_messages=limit) == [m for t in turns[-kept:] for m in t]


def test_a_call_is_never_parted_from_its_result() -> None:
    asked, result = AssistantMessage("", (CALL,)), ToolMessage("1", "a__b", "done")
    said = [*turn(1, asked, result), *turn(2)]

    assert seen(said, max_messages=5) == turn(2)


@pytest.mark.parametrize("bounds", [(1, 10_000), (100, 1), (0, 0)])
def test_the_last_turn_is_kept_whatever_it_costs(bounds: tuple[int, int]) -> None:
    last = turn(2, AssistantMessage("", (CALL,)), ToolMessage("1", "a__b", "x" * 100_000))

    assert seen([*turn(1), *last], *bounds) == last


def test_a_turn_without_an_answer_yet_is_a_turn() -> None:
    assert seen([*turn(1), UserMessage("question 2")], max_messages=1) == [UserMessage("question 2")]


def test_what_comes_before_the_first_question_is_left_out() -> None:
    assert seen([AssistantMessage("stray"), *turn(1)]) == turn(1)
    assert seen([]) == []


def test_the_window_ends_before_a_turn_that_does_not_fit() -> None:
    said = [*turn(1), *turn(2, AssistantMessage("x" * 1_000)), *turn(3)]

    assert seen(said, max_tokens=200) == turn(3)


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (UserMessage(""), 8),
        (UserMessage("x" * 40), 18),
        (UserMessage("\N{GRINNING FACE}" * 10), 18),
        (SystemMessage("x" * 40), 18),
        (ToolMessage("1", "a__b", "x" * 40), 18),
        (AssistantMessage("x" * 40, reasoning="not sent back" * 100), 18),
        (AssistantMessage("x" * 40, (CALL,), reasoning="x" * 40), 33),
    ],
)
def test_what_is_sent_to_the_model_is_counted(message: Message, tokens: int) -> None:
    assert tokens_of_message(message) == tokens


TURNS = st.lists(
    st.lists(st.text(max_size=30), max_size=4).map(
        lambda texts: [UserMessage("?"), *(AssistantMessage(text) for text in texts)]
    ),
    min_size=1,
    max_size=6,
)


@given(TURNS, st.integers(0, 12), st.integers(0, 120))
def test_the_window_is_the_longest_run_of_newest_turns_that_fits(
    turns: list[list[Message]], max_messages: int, max_tokens: int
) -> None:
    said = [message for each in turns for message in each]

    kept = seen(said, max_messages, max_tokens)

    fits = [turns[-n:] for n in range(1, len(turns) + 1)]
    expected = fits[0]
    for run in fits[1:]:
        flat = [message for each in run for message in each]
        if len(flat) > max_messages or sum(map(tokens_of_message, flat)) > max_tokens:
            break
        expected = run
    assert kept == [message for each in expected for message in each]
