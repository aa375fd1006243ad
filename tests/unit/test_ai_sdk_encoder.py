"""Turns as UI message streams of the AI SDK: `facades/ai_sdk/encoder.py`, and what a stream takes of its outputs."""

import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.chat.events import REBUILT_EPOCH, REBUILT_SEQ, Batch, Cursor, Frame
from dialog_engine.facades.ai_sdk.encoder import AiSdkEncoder, Version
from dialog_engine.facades.encoder import EPOCH_SHIFT, Output
from dialog_engine.facades.stream import WHOLE, Part, outputs
from dialog_engine.http.sse import BrokenStreamError
from tests.marks import promise
from tests.support.random_turns import TURN, RandomTurn, random_turns
from tests.support.ui_messages import Page

VERSIONS: list[Version] = [5, 6, 7]
versions = st.sampled_from(VERSIONS)


def encoded(frames: Sequence[Frame], version: Version) -> list[Output]:
    encoder = AiSdkEncoder(version)
    return [output for frame in frames for output in encoder.feed(frame)]


async def batched(frames: Sequence[Frame], size: int) -> AsyncGenerator[Batch]:
    for place in range(0, len(frames), size):
        yield frames[place : place + size]


async def sent(
    frames: Sequence[Frame], version: Version, part: Part = WHOLE, size: int = 3, page: Page | None = None
) -> bytes:
    async def again() -> AsyncGenerator[Batch]:
        return batched(frames, size)

    encoder = partial(AiSdkEncoder, version)
    sent = b""
    async for data in outputs(batched(frames, size), encoder, part, again):
        sent += data
        if page:
            page.read(data)
    return sent


def run_here(page: Page) -> list[dict[str, Any]]:
    """The calls that the page does not run itself."""
    return [part for part in page.parts if part["type"] == "dynamic-tool" and part.get("providerExecuted")]


def frame(event_id: str, name: str, data: str) -> Frame:
    return Frame(event_id, name, data)


STARTED = frame("1-1", "control", '{"type":"turn","status":"started","turnId":"turn","sessionId":"session"}')
DONE = '{"reason":"stop","usage":{"inputTokens":1,"outputTokens":2},"toolCalls":0,"ttftMs":1,"turnId":"turn"}'


USED = {"inputTokens": 10, "outputTokens": 5, "totalTokens": 15}
NEW = {
    "inputTokenDetails": {"noCacheTokens": 3, "cacheReadTokens": 4, "cacheWriteTokens": 3},
    "outputTokenDetails": {"textTokens": 3, "reasoningTokens": 2},
}
DETAILS: dict[int, dict[str, Any]] = {5: {"reasoningTokens": 2, "cachedInputTokens": 4}, 6: NEW, 7: NEW}
"""As `LanguageModelUsage` of the package has them."""


def done_after(place: str) -> Frame:
    cursor = Cursor.parse(place)
    return frame(str(Cursor(cursor.epoch, cursor.seq + 1)), "done", DONE)


@promise("a page with the AI SDK shows what is stored of a turn, whatever has happened to its engines")
@given(turn=random_turns(), version=versions)
def test_a_page_shows_each_committed_text_once_and_every_call(turn: RandomTurn, version: Version) -> None:
    page = Page()
    for output in encoded(turn.frames, version):
        page.read(output.data)

    assert page.id == TURN
    if version == 7 or not turn.resets:
        assert page.text == "".join(turn.texts)
    assert page.text.endswith(turn.texts[-1])
    assert page.metadata["usage"] == page.metadata["models"]["openai:gpt"] == USED | DETAILS[version]
    ended = [part["state"] for part in run_here(page)]
    assert [part["type"] for part in page.parts].count("file") == ended.count("tool-output-available")
    assert {*ended} <= {"tool-output-available", "tool-output-error", "tool-output-denied"}
    assert not any(part.get("preliminary") for part in page.parts)


@given(turn=random_turns(), version=st.sampled_from(VERSIONS[1:]))
async def test_each_request_of_a_page_gets_what_follows_on_its_answers(turn: RandomTurn, version: Version) -> None:
    page = Page()
    page.read(await sent(turn.frames, version))
    while page.finish == "tool-calls":
        asked = [part for part in page.parts if part.get("state") in ("tool-approval-request", "input-available")]
        if "providerExecuted" not in asked[0]:
            asked[0]["state"] = "the page has run it"
        page.read(await sent(turn.frames, version, Part(answered={asked[0]["toolCallId"]})))

    whole = Page()
    for output in encoded(turn.frames, version):
        whole.read(output.data)
    if not turn.resets:
        assert page.text == whole.text
        assert run_here(page) == run_here(whole)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_stream_that_ends_before_its_turn_is_broken_off(version: Version) -> None:
    begun = [STARTED, frame("1-2", "text", '{"delta":"a"}')]
    with pytest.raises(BrokenStreamError):
        await sent(begun, version)


async def test_a_page_that_comes_back_can_answer_whatever_was_logged_after_the_turn_began_to_wait() -> None:
    """A page sends no answer while its stream is open."""
    waiting = frame("1-2", "control", WAITING)
    updated = frame("1-3", "control", '{"type":"resource","status":"updated","server":"files","uri":"a:b"}')
    for size in (1, 3):
        everything = await sent([STARTED, waiting, updated], 6, Part(beyond=Cursor(1, 3)), size)
        assert everything == await sent([STARTED, waiting], 6)


CALL = '"toolName":"demo__add","toolCallId":"c","correlationId":"call","round":1'
WAITING = '{"type":"waiting","approvals":1,"calls":["call"]}'
DECIDED = f'{{"type":"approval","status":"approved",{CALL}}}'


async def test_a_page_whose_place_is_not_in_the_log_any_more_gets_everything() -> None:
    said = f'{{"event":"control","data":{DECIDED}}}'
    log = [
        STARTED,
        frame("1-2", "text", '{"delta":"a"}'),
        frame("2-1", "reset", f'{{"reason":"adoption","events":[{said}]}}'),
        frame("2-2", "text", '{"delta":"b"}'),
    ]
    page = Page()
    with pytest.raises(BrokenStreamError):
        await sent(log, 6, Part(answered={"call"}), page=page)
    assert page.text == "ab"


async def test_no_reader_holds_what_came_before_its_place() -> None:
    async def log() -> AsyncGenerator[Batch]:
        yield [STARTED]
        for place in range(2, 500):
            yield [frame(f"1-{place}", "reasoning", f'{{"delta":"{"a" * 10_000}"}}')]
        yield [frame("1-500", "control", WAITING), frame("1-501", "control", DECIDED), frame("1-502", "done", DONE)]

    async def again() -> None:
        pytest.fail("the place is in the log")

    tracemalloc.start()
    data = [each async for each in outputs(log(), partial(AiSdkEncoder, 7), Part(answered={"call"}), again)]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(b"".join(data)) < 1_000
    assert peak < 1_000_000


@pytest.mark.parametrize("place", [f"{REBUILT_EPOCH}-1", f"{REBUILT_EPOCH + 1}-1", f"999-{REBUILT_SEQ}"])
def test_every_number_is_exact_in_javascript(place: str) -> None:
    first, second = (each.number for each in encoded([frame(place, STARTED.name, STARTED.data), done_after(place)], 6))
    assert 999 << EPOCH_SHIFT < first < second < 2**53


@pytest.mark.parametrize(("version", "shown"), [(5, ["Hal", "Hello"]), (6, ["Hal", "Hello"]), (7, ["Hello"])])
def test_a_text_that_is_another_in_the_end_is_replaced_or_follows(version: Version, shown: list[str]) -> None:
    page = Page()
    for output in encoded(
        [
            STARTED,
            frame("1-2", "text", '{"delta":"Hal"}'),
            frame("1-3", "message", '{"messageId":1,"role":"assistant","content":"Hello"}'),
            frame("1-4", "done", DONE),
        ],
        version,
    ):
        page.read(output.data)
    assert [part["text"] for part in page.parts if part["type"] == "text"] == shown


def test_a_delta_is_the_json_of_the_log_in_another_frame() -> None:
    encoder = AiSdkEncoder(6)
    [*_] = encoder.feed(STARTED)
    [*_] = encoder.feed(frame("1-2", "text", '{"delta":"a"}'))
    [output] = encoder.feed(frame("1-3", "text", '{"delta":"\\"ü\\n"}'))
    assert output.data == 'data: {"type":"text-delta","id":"text-1","delta":"\\"ü\\n"}\n\n'.encode()


def test_a_message_that_was_withdrawn_ends_its_stream() -> None:
    page = Page()
    for output in encoded([frame("1-1", "withdrawn", '{"turnId":"turn"}')], 6):
        page.read(output.data)
    assert (page.id, page.finish, page.ended) == ("turn", "other", 1)
