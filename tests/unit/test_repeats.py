"""A model that repeats its calls: what counts as a repetition, and what follows from it. Pure."""

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import (
    AssistantMessage,
    FinishReason,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    UserMessage,
)
from dialog_engine.tool_calls.normalise import normalise
from dialog_engine.tool_calls.planning import (
    LAST_NOTE,
    REFUSED_ROUNDS,
    SAME_RESULTS,
    Repeats,
    find_repeats,
    with_last_note,
)
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import MediaBlock, ToolError
from tests.marks import promise

Round = Sequence[tuple[str, str]]
"""Calls of one reply, each what is called and what came of it."""

SAME = [("status {}", "pending")]
OTHER = [("logs {}", "nothing")]
EDIT = [[(f'edit {{"n": {n}}}', "done")] for n in range(10)]


def call(written: str) -> ToolCall:
    name, _, arguments = written.partition(" ")
    return ToolCall("", "", name, arguments)


def turn(*rounds: Round) -> tuple[Message, ...]:
    messages: list[Message] = [SystemMessage("Be brief."), UserMessage("Go!")]
    for calls in rounds:
        messages.append(AssistantMessage("", tuple(call(written) for written, _ in calls)))
        messages += [ToolMessage("", written.split()[0], result) for written, result in calls]
    return normalise(messages)


def repeats(messages: Sequence[Message]) -> Repeats:
    return find_repeats(messages)[0]


def noted(messages: Sequence[Message]) -> tuple[Message, ...]:
    return find_repeats(messages)[1]


@promise("a call that repeats itself with the same result is noticed")
@pytest.mark.parametrize(
    ("rounds", "refused"),
    [
        ([], False),
        ([SAME] * (SAME_RESULTS - 1), False),
        ([SAME] * SAME_RESULTS, True),
        ([SAME] * (SAME_RESULTS + 2), True),
        ([SAME * SAME_RESULTS], True),
        # Neither another call without a new result nor another form of the same arguments resets the count.
        ([SAME, OTHER, SAME, OTHER, SAME, SAME], True),
        ([SAME, [("status { }", "pending")], [("status ", "pending")]], True),
        # A result that changes resets it, and so does any other new result.
        ([[("status {}", f"{n} of 9")] for n in range(9)], False),
        ([SAME, SAME, OTHER, SAME, SAME], False),
        ([SAME, SAME, SAME, OTHER], False),
        ([SAME, EDIT[0], SAME, EDIT[1], SAME, EDIT[2], SAME, EDIT[3], SAME], False),
        # Alternating between two results is not new.
        ([SAME, [("status {}", "done")], SAME, [("status {}", "done")], SAME], True),
        # Other arguments are another call.
        ([[('status {"of": 1}', "pending")]] * 9, False),
    ],
)
def test_a_call_is_refused_after_it_had_the_same_result_three_times(rounds: list[Round], refused: bool) -> None:
    outcome = repeats(turn(*rounds)).refusal(call("status {}"))

    assert (outcome is not None) is refused
    assert outcome is None or (outcome.error and outcome.error.code is ErrorCode.REPEATED)


def test_the_same_arguments_in_another_order_are_the_same_call() -> None:
    messages = turn(*[[('f {"a": 1, "b": {"x": 1, "y": 2}}', "z")]] * SAME_RESULTS)

    assert repeats(messages).refusal(call('f {"b":{"y":2,"x":1},"a":1}')) is not None
    assert repeats(messages).refusal(call('f {"b":{"y":2,"x":1},"a":2}')) is None


@promise("approvals: a person is not asked again in a turn about a call that they refused")
def test_a_call_that_a_person_refused_keeps_its_refusal_until_the_user_speaks_again() -> None:
    refused = ToolMessage("", "f", "Error NOT_APPROVED: no", failed=True, refusal="no")
    messages = (UserMessage("Go!"), AssistantMessage("", (call('f {"a": 1, "b": 2}'),)), refused)

    outcome = repeats(messages).refusal(call('f {"b":2,"a":1}'))
    assert outcome is not None
    assert outcome.error == ToolError(ErrorCode.NOT_APPROVED, "no")
    assert repeats(messages).refusal(call('f {"a": 1, "b": 3}')) is None
    assert repeats((*messages, UserMessage("Do it."))).refusal(call('f {"a": 1, "b": 2}')) is None


def test_calls_whose_arguments_are_cut_off_count_as_the_same_call() -> None:
    rounds: list[Round] = [
        [('f {"text": "one', "it was cut")],
        [('f {"text": "two', "it was cut")],
        [("f {", "it was cut")],
    ]

    assert repeats(turn(*rounds)).refusal(call('f {"text": "three')) is not None
    assert repeats(turn(*rounds)).refusal(call('f {"text": "three"}')) is None


def test_results_with_different_images_are_different() -> None:
    def shot(data: str) -> list[Message]:
        media = (MediaBlock("image/png", data),)
        return [AssistantMessage("", (call("shot {}"),)), ToolMessage("", "shot", "[image/png]", media)]

    same = normalise([UserMessage("Look!"), *shot("a"), *shot("a"), *shot("a")])
    other = normalise([UserMessage("Look!"), *shot("a"), *shot("b"), *shot("c")])

    assert repeats(same).refusal(call("shot {}")) is not None
    assert repeats(other).refusal(call("shot {}")) is None


def test_repetitions_are_counted_per_turn() -> None:
    assert repeats((*turn(*[SAME] * 5), AssistantMessage("Hm."), UserMessage("Again!"))).times == {}


@promise("a call that repeats itself with the same result is noticed")
@pytest.mark.parametrize(
    ("rounds", "last"),
    [
        ([SAME] * SAME_RESULTS, None),
        ([SAME] * (SAME_RESULTS + REFUSED_ROUNDS - 1), None),
        ([SAME] * (SAME_RESULTS + REFUSED_ROUNDS), FinishReason.REPEATED_CALLS),
        ([SAME] * (SAME_RESULTS + 1) + [OTHER] + [SAME] * SAME_RESULTS, None),
        ([SAME, OTHER] * 4 + [SAME], FinishReason.REPEATED_CALLS),
        ([[*SAME, *EDIT[n]] for n in range(9)], None),
    ],
)
def test_a_model_that_repeats_refused_calls_has_to_answer(rounds: list[Round], last: FinishReason | None) -> None:
    assert repeats(turn(*rounds)).last_answer(len(rounds), max_rounds=100) is last


def test_the_limit_of_rounds_takes_precedence() -> None:
    assert repeats(turn(*[SAME] * 5)).last_answer(5, max_rounds=5) is FinishReason.MAX_ROUNDS


def test_the_last_note_is_added_to_a_final_result_only() -> None:
    *_, result = with_last_note(turn(SAME))
    assert result == ToolMessage("call_2", "status", f"pending\n\n{LAST_NOTE}")
    spoken = (UserMessage("Hi"),)
    assert with_last_note(spoken) == spoken


rounds_of_calls = st.lists(
    st.lists(st.tuples(st.sampled_from(["a {}", "b {}", "a {"]), st.sampled_from(["1", "2"])), min_size=1, max_size=2),
    max_size=12,
)


@given(rounds_of_calls, st.integers(0, 12))
def test_notes_are_only_appended_to_results_and_do_not_change_afterwards(rounds: list[Round], at: int) -> None:
    whole, part = noted(turn(*rounds)), noted(turn(*rounds[:at]))

    assert whole[: len(part)] == part
    for before, after in zip(turn(*rounds), whole, strict=True):
        if isinstance(before, ToolMessage) and isinstance(after, ToolMessage):
            assert after.content.startswith(before.content)
        else:
            assert after == before
