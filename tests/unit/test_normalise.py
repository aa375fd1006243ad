"""Whatever happened in a session, its history is sent in a form that every provider accepts."""

from collections import Counter

from hypothesis import assume, given
from hypothesis import strategies as st

from dialog_engine.context import MAX_BYTES, within_sight
from dialog_engine.model import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.normalise import UNKNOWN_OUTCOME, normalise
from dialog_engine.tool_calls.results.texts import tool_message
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome
from tests.marks import promise
from tests.support.corpus import HistoryCase, files_of, messages_of, messages_written, read_case

USER = UserMessage("What time is it?")


def asks(*ids: str, content: str = "") -> AssistantMessage:
    return AssistantMessage(content, tuple(ToolCall(call_id, f"correlation-{call_id}", "now", "{}") for call_id in ids))


def result(call_id: str, content: str = "noon") -> ToolMessage:
    return ToolMessage(call_id, "now", content)


FILES = files_of("histories")


@promise("every history becomes one that providers accept")
def test_each_history_of_the_corpus_is_sent_as_its_file_says() -> None:
    for path in FILES:
        case = read_case(path, HistoryCase)
        sent = normalise(messages_of(case.messages))

        assert messages_written(sent) == messages_written(messages_of(case.sent)), path.stem
        assert normalise(sent) == sent, path.stem


def test_every_quirk_of_histories_has_a_file() -> None:
    assert len({read_case(path, HistoryCase).quirk for path in FILES}) >= 15


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


@promise("every history becomes one that providers accept")
@given(histories)
def test_every_history_is_normalised_to_one_that_providers_accept(history: list[Message]) -> None:
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
    assert normalise(accepted) == accepted
    assert all(count == 1 for count in used.values())
    assert "" not in used
    assert sum(message == USER for message in accepted) == sum(message == USER for message in history)


@given(histories, histories)
def test_later_messages_do_not_change_earlier_ones(earlier: list[Message], later: list[Message]) -> None:
    # Providers cache prompts by their beginning. A result that was missing is the one thing that may still come.
    before = normalise(earlier)
    assume(not any(isinstance(message, ToolMessage) and message.content == UNKNOWN_OUTCOME for message in before))

    assert normalise([*earlier, *later])[: len(before)] == before


@given(histories)
def test_a_result_changes_nothing_before_its_call(history: list[Message]) -> None:
    before = normalise(history)
    after = normalise([*history, USER, asks("a", "b"), result("a")])

    assert after[: len(before)] == before


# --- Images and sounds ---


CALL = ToolCall("a", "id", "camera__shoot", "{}")


def shots(*names: str, size: int = 0) -> ToolMessage:
    return ToolMessage("a", "camera__shoot", f"{len(names)} images", tuple(image(name, size) for name in names))


def image(name: str, size: int = 0) -> MediaBlock:
    return MediaBlock("image/png", name.ljust(size, "="))


def seen(*messages: Message) -> list[str]:
    return [
        block.data.strip("=")
        for message in within_sight(messages)
        if isinstance(message, ToolMessage)
        for block in message.media
    ]


def test_a_result_keeps_its_images_and_sounds_beside_its_words() -> None:
    sound, document = MediaBlock("audio/wav", "AAAA"), MediaBlock("application/pdf", "AAAA")
    outcome = ToolOutcome(CallState.SUCCEEDED, (TextBlock("Click."), image("1"), sound, document))

    message = tool_message(CALL, outcome)

    assert message.media == (image("1"), sound)
    assert message.content.startswith("Click.\n[image/png, ")


def test_of_many_images_the_newest_are_sent() -> None:
    assert seen(shots(*"1234"), UserMessage("More!"), shots(*"56789")) == [*"23456789"]


def test_large_images_are_sent_from_the_newest_on_until_one_does_not_fit() -> None:
    half = MAX_BYTES // 2
    assert seen(shots("small"), shots("2", size=half + 4), shots("3", size=half), shots("4", size=half)) == ["3", "4"]
