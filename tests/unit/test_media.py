"""The model is sent the newest images of a conversation, and no more than a request may hold."""

import pytest

from dialog_engine.chat.history import estimate_tokens
from dialog_engine.model import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls.normalise import normalise, within_sight
from dialog_engine.tool_calls.views import tool_message
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome

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


def test_few_images_are_all_sent_and_the_conversation_is_unchanged() -> None:
    said = (UserMessage("Shoot!"), AssistantMessage("", (CALL,)), shots("1", "2"), AssistantMessage("Done."))
    assert within_sight(said) == said


def test_of_many_images_the_newest_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dialog_engine.tool_calls.normalise.MAX_BLOCKS", 3)
    assert seen(shots("1", "2"), UserMessage("More!"), shots("3", "4")) == ["2", "3", "4"]


def test_of_large_images_the_newest_that_fit_are_sent_and_none_that_is_older(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dialog_engine.tool_calls.normalise.MAX_BASE64", 100)
    assert seen(shots("small"), shots("2", size=60), shots("3", size=50), shots("4", size=50)) == ["3", "4"]


def test_the_text_still_names_an_image_that_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dialog_engine.tool_calls.normalise.MAX_BLOCKS", 0)
    [left] = within_sight([tool_message(CALL, ToolOutcome(CallState.SUCCEEDED, (image("1"),)))])
    assert left == ToolMessage("a", "camera__shoot", "[image/png, shown to the user]")


def test_a_history_made_acceptable_keeps_its_images() -> None:
    said = (UserMessage("Shoot!"), AssistantMessage("", (CALL,)), shots("1"))
    assert normalise(said) == said


def test_an_image_counts_by_the_piece_and_not_by_its_bytes() -> None:
    assert estimate_tokens(shots("1", size=400_000)) - estimate_tokens(shots("1")) == 0
    assert estimate_tokens(shots("1", "2")) - estimate_tokens(shots("1")) == 1_500
