"""Which part of a conversation a model is sent: whole turns and rounds, the newest, and what it is told of the rest."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.context import NOTE, count_of_said, fit, newest_turns, tokens_of_message, tokens_of_request
from dialog_engine.model import (
    AssistantMessage,
    ChatRequest,
    Message,
    SystemMessage,
    ToolCall,
    ToolMessage,
    Turn,
    UserMessage,
)
from dialog_engine.tool_calls.normalise import normalise
from plugins_contract.outcomes import MediaBlock
from tests.marks import promise
from tests.support.fakes.worker import tool

CALL = ToolCall("1", "id", "a__b", "{}")


def turn(number: int, *rest: Message) -> list[Message]:
    return [UserMessage(f"question {number}"), *rest, AssistantMessage(f"answer {number}")]


def seen(messages: list[Message], max_messages: int = 100, max_tokens: int = 10_000) -> list[Message]:
    return list(newest_turns(messages, max_messages=max_messages, max_tokens=max_tokens))


def test_what_comes_before_the_first_question_is_left_out() -> None:
    assert seen([AssistantMessage("stray"), *turn(1)]) == turn(1)
    assert seen([]) == []


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        (UserMessage(""), 8),
        (UserMessage("x" * 40), 18),
        (UserMessage("1,2;" * 10), 34),
        (UserMessage("\N{GRINNING FACE}" * 10), 24),
        (SystemMessage("x" * 40), 18),
        (ToolMessage("1", "a__b", "x" * 40), 18),
        (ToolMessage("1", "a__b", "x" * 40, (MediaBlock("image/png", "AAAA"),)), 1518),
        (AssistantMessage("x" * 40, reasoning="not sent back" * 100), 18),
        (AssistantMessage("x" * 40, (CALL,), reasoning="x" * 40), 39),
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


# --- What one model is sent ---

QUESTION, ANSWER = UserMessage("q" * 40), AssistantMessage("a" * 40)
SYSTEM, TOOL = SystemMessage("s" * 40), tool("a__b")
ROUND = (AssistantMessage("", (CALL,)), ToolMessage("1", "a__b", "r" * 40))


def request(*said: Message, left_out: int = 0) -> ChatRequest:
    return ChatRequest((SYSTEM, *said), Turn("turn", "session", "subject"), (TOOL,), left_out=left_out)


OLD, NOW = (QUESTION, ANSWER), (QUESTION, *ROUND)
LEAST = tokens_of_request(request(SystemMessage(NOTE), *NOW))


@pytest.mark.parametrize(
    ("said", "room", "kept", "left_out"),
    [
        ((*OLD, *NOW), LEAST + 36, (*OLD, *NOW), 0),
        ((*OLD, *NOW), LEAST + 35, NOW, 2),
        ((*OLD, *OLD, *NOW), LEAST + 36, (*OLD, *NOW), 2),
        (NOW, 0, NOW, 0),
        ((*OLD, QUESTION), 0, (QUESTION,), 2),
        # Rounds of the turn go before earlier turns, and the last one stays.
        ((*OLD, *NOW, *ROUND), LEAST, NOW, 3),
        ((*OLD, *NOW, *ROUND), 0, NOW, 3),
        ((*OLD, *NOW, *ROUND), 2 * LEAST, (*OLD, *NOW, *ROUND), 0),
        ((*OLD, *NOW, *ROUND, *ROUND), LEAST + sum(map(tokens_of_message, ROUND)), (*NOW, *ROUND), 3),
    ],
)
def test_the_question_and_the_last_round_are_sent_then_what_fits_beside_the_system_message_and_the_tools(
    said: tuple[Message, ...], room: int, kept: tuple[Message, ...], left_out: int
) -> None:
    sent = fit(request(*said), room)

    assert sent.messages[1:] == kept
    assert sent.left_out == left_out
    assert sent.messages[0] == (SystemMessage(f"{SYSTEM.content}\n\n{NOTE}") if left_out else SYSTEM)


def test_what_was_left_out_before_is_counted_and_said_too() -> None:
    sent = fit(request(*NOW, left_out=5), 10_000)

    assert (sent.left_out, NOTE in sent.messages[0].content) == (5, True)
    assert fit(ChatRequest(NOW, sent.turn, left_out=5), 10_000).messages == (SystemMessage(NOTE), *NOW)


SAID = st.lists(
    st.one_of(
        st.builds(UserMessage, st.text(max_size=40)),
        st.builds(AssistantMessage, st.text(min_size=1, max_size=40)),
        st.builds(AssistantMessage, st.just(""), st.lists(st.just(CALL), min_size=1, max_size=3).map(tuple)),
    ),
    max_size=12,
).map(lambda said: normalise([UserMessage("first"), *said]))


@promise("of a long conversation each model is sent what fits, and the model and the client know what is missing")
@given(SAID, st.integers(0, 400))
def test_what_is_sent_is_valid_fits_and_could_not_have_one_part_more(said: tuple[Message, ...], room: int) -> None:
    whole = request(*said)
    sent = fit(whole, room)

    body = sent.messages[1:]
    assert normalise(body) == body
    assert body[-1] == said[-1]
    question = max(n for n, message in enumerate(said) if isinstance(message, UserMessage))
    assert said[question] in body
    assert sent.left_out == count_of_said(said) - count_of_said(body)
    assert tokens_of_request(sent) <= room or fit(whole, 0).messages[1:] == body
    assert tokens_of_request(whole) + tokens_of_message(SystemMessage(NOTE)) > room or body == said
    assert fit(whole, room + 1_000_000).messages == whole.messages
