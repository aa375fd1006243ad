"""Whatever happened to a session, its history is one that every provider accepts."""

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from dialog_engine.model import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.normalise import UNKNOWN_OUTCOME, normalise
from tests.support.corpus import history_files, messages_of, messages_written, read_history

USER = UserMessage("What time is it?")


def asks(*ids: str, content: str = "") -> AssistantMessage:
    return AssistantMessage(content, tuple(ToolCall(call_id, f"correlation-{call_id}", "now", "{}") for call_id in ids))


def result(call_id: str, content: str = "noon") -> ToolMessage:
    return ToolMessage(call_id, "now", content)


FILES = history_files()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_history_is_sent_as_providers_accept_it(path: Path) -> None:
    case = read_history(path)
    sent = normalise(messages_of(case.messages))

    assert messages_written(sent) == messages_written(messages_of(case.sent))
    assert normalise(sent) == sent


def test_every_quirk_of_histories_has_a_file() -> None:
    assert {read_history(path).quirk for path in FILES} == {
        "nothing wrong",
        "a call without a result",
        "a result without a call",
        "results out of order",
        "two results for one call",
        "something between a call and its result",
        "an interrupted reply",
        "ids that repeat",
        "ids that are too long",
        "names that no tool has",
        "an assistant message of nothing",
        "results of calls that went wrong",
        "what providers want echoed",
        "broken arguments",
        "two messages of the user in a row",
    }


def test_a_suffix_that_is_an_id_already_is_not_used_twice() -> None:
    ids = [
        message.tool_call_id
        for message in normalise((asks("a"), asks("a"), asks("a_2")))
        if isinstance(message, ToolMessage)
    ]
    assert len(set(ids)) == 3


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
    before: Message | None = None
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
                assert not isinstance(before, UserMessage | ToolMessage)
        before = message
    assert not expected
    assert all(count == 1 for count in used.values())
    assert "" not in used
    assert sum(message == USER for message in accepted) == sum(message == USER for message in history)


@given(histories)
def test_normalising_twice_changes_nothing_more(history: list[Message]) -> None:
    assert normalise(normalise(history)) == normalise(history)


@given(histories, histories)
def test_what_comes_later_does_not_change_what_was_sent_before(earlier: list[Message], later: list[Message]) -> None:
    # Providers cache prompts by their beginning. A result that was missing is the one thing that may still come.
    before = normalise(earlier)
    assume(not any(isinstance(message, ToolMessage) and message.content == UNKNOWN_OUTCOME for message in before))

    assert normalise([*earlier, *later])[: len(before)] == before


@given(histories)
def test_a_call_that_is_answered_changes_nothing_before_it(history: list[Message]) -> None:
    before = normalise(history)
    after = normalise([*history, USER, asks("a", "b"), result("a")])

    assert after[: len(before)] == before
