"""Whatever happened to a session, its history is one that every provider accepts."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import AssistantMessage, Message, SystemMessage, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.normalise import MAX_CALL_ID_CHARACTERS, UNKNOWN_OUTCOME, normalise

USER = UserMessage("What time is it?")


def asks(*ids: str, content: str = "") -> AssistantMessage:
    return AssistantMessage(content, tuple(ToolCall(call_id, f"correlation-{call_id}", "now", "{}") for call_id in ids))


def result(call_id: str, content: str = "noon") -> ToolMessage:
    return ToolMessage(call_id, "now", content)


def test_a_sound_history_is_left_as_it_is() -> None:
    history = (SystemMessage("Be brief."), USER, asks("a", "b"), result("a"), result("b"), AssistantMessage("Noon."))
    assert normalise(history) == history


def test_results_follow_their_calls_at_once_and_in_their_order() -> None:
    history = (USER, asks("a", "b"), result("b", "2"), USER, AssistantMessage("Hm."), result("a", "1"))
    assert normalise(history) == (
        USER,
        asks("a", "b"),
        result("a", "1"),
        result("b", "2"),
        USER,
        AssistantMessage("Hm."),
    )


def test_a_call_without_a_result_is_answered_with_what_is_known() -> None:
    assert normalise((USER, asks("a"), USER)) == (USER, asks("a"), result("a", UNKNOWN_OUTCOME), USER)


def test_orphans_and_second_results_are_dropped() -> None:
    history = (result("a"), USER, asks("a"), result("a", "first"), result("a", "second"), result("z"))
    assert normalise(history) == (USER, asks("a"), result("a", "first"))


def test_an_assistant_message_that_says_and_asks_nothing_is_dropped() -> None:
    assert normalise((USER, AssistantMessage(" \n"), AssistantMessage("", interrupted=True), USER)) == (USER, USER)


def test_an_id_used_again_in_a_later_turn_gets_a_suffix_on_both_sides() -> None:
    history = (asks("a"), result("a", "1"), asks("a"), result("a", "2"), asks("a"))
    assert normalise(history) == (
        asks("a"),
        result("a", "1"),
        renamed("a_2", "a"),
        result("a_2", "2"),
        renamed("a_3", "a"),
        result("a_3", UNKNOWN_OUTCOME),
    )


def test_a_result_answers_the_latest_call_with_its_id() -> None:
    history = (asks("a"), asks("a"), result("a", "2"))
    assert normalise(history) == (asks("a"), result("a", UNKNOWN_OUTCOME), renamed("a_2", "a"), result("a_2", "2"))


def test_a_suffix_that_is_an_id_already_is_not_used_twice() -> None:
    ids = [
        message.tool_call_id
        for message in normalise((asks("a"), asks("a"), asks("a_2")))
        if isinstance(message, ToolMessage)
    ]
    assert len(set(ids)) == 3


def test_a_suffix_does_not_make_an_id_too_long() -> None:
    long = "x" * MAX_CALL_ID_CHARACTERS
    assert answered((asks(long), asks(long))) == [long, "x" * (MAX_CALL_ID_CHARACTERS - 2) + "_2"]


def renamed(call_id: str, before: str) -> AssistantMessage:
    return AssistantMessage("", (ToolCall(call_id, f"correlation-{before}", "now", "{}"),))


def answered(history: tuple[Message, ...]) -> list[str]:
    return [message.tool_call_id for message in normalise(history) if isinstance(message, ToolMessage)]


ids = st.sampled_from(["a", "b", "a_2", ""])
histories = st.lists(
    st.one_of(
        st.just(USER),
        st.builds(AssistantMessage, st.sampled_from(["", "Noon."])),
        st.lists(ids, min_size=1, max_size=3).map(lambda chosen: asks(*chosen)),
        st.builds(result, ids, st.sampled_from(["1", "2"])),
    ),
    max_size=10,
)


@given(histories)
def test_every_history_becomes_one_that_providers_accept(history: list[Message]) -> None:
    accepted = normalise(history)

    expected: list[str] = []
    used: Counter[str] = Counter()
    for message in accepted:
        match message:
            case ToolMessage(tool_call_id):
                assert expected.pop(0) == tool_call_id
            case AssistantMessage(content, calls):
                assert not expected
                assert content or calls
                expected = [call.tool_call_id for call in calls]
                used.update(expected)
            case _:
                assert not expected
    assert not expected
    assert all(count == 1 for count in used.values())
    assert "" not in used
    assert sum(message == USER for message in accepted) == sum(message == USER for message in history)


@given(histories)
def test_normalising_twice_changes_nothing_more(history: list[Message]) -> None:
    assert normalise(normalise(history)) == normalise(history)


@given(histories)
def test_what_comes_later_does_not_change_what_was_sent_before(history: list[Message]) -> None:
    # Providers cache prompts by their beginning.
    before = normalise(history)
    after = normalise([*history, USER, asks("a", "b"), result("a")])
    assert after[: len(before)] == before
