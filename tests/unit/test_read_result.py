"""A model reads the rest of a long result of its own session, in pages or by search."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import ChatRequest, ToolMessage, Turn
from dialog_engine.tool_calls.results.read_result import ReadResult, found, page, without_case
from plugins_contract.outcomes import CallState
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool

LINES = "".join(f"entry {number}: {'needle' if number == 40_000 else 'hay'}\n" for number in range(50_000))
SHELF = FakeCatalog(tool("logs__read"))
LONG = {"logs__read": gives(succeeded(LINES))}


def last_result(request: ChatRequest) -> ToolMessage:
    return next(message for message in reversed(request.messages) if isinstance(message, ToolMessage))


def named(message: ToolMessage) -> tuple[str, int]:
    """The id and the offset that a cut result names."""
    match = re.search(r'id "(\w+)" and offset (\d+)', message.content)
    assert match
    return match[1], int(match[2])


async def cut(engine: FakeEngine, model: ScriptedModel) -> tuple[Turn, str, int]:
    """A finished turn with a result that was cut: its name, and where it was cut."""
    turn = await engine.turns.start("someone", None, "Read the logs!")
    await engine.seen(turn)
    return turn, *named(last_result(model.requests[1]))


def scripted() -> ScriptedModel:
    return ScriptedModel(asks(("logs__read", "")), says("Done."))


# --- Whose, and which ---


def reader(engine: FakeEngine) -> ReadResult:
    return ReadResult(engine.store.results, 16_000)


async def test_results_of_other_sessions_and_users_cannot_be_read() -> None:
    model = ScriptedModel(asks(("logs__read", "")), says("Done."), says("Hello."))
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        turn, name, _ = await cut(engine, model)
        other = await engine.turns.start("someone", None, "Hello!")
        await engine.seen(other)

        assert (await reader(engine).answer(turn, {"id": name})).state is CallState.SUCCEEDED
        for stranger in (other, replace(turn, subject="somebody else")):
            refused = await reader(engine).answer(stranger, {"id": name})
            assert refused.error is not None
            assert refused.error.message == f"there is no result {name!r} in this conversation. No result here was cut."


async def test_an_unknown_id_is_answered_with_existing_ones_and_an_offset_past_the_end_with_the_length() -> None:
    model = scripted()
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        turn, name, _ = await cut(engine, model)
        for wrong, code, words in (
            *(
                ({"id": wrong}, "RESOURCE_NOT_FOUND", f'"{name}" of logs__read.')
                for wrong in ("0" * 8, "%" * 8, "_" * 8)
            ),
            ({"id": name, "offset": len(LINES)}, "INVALID_ARGUMENTS", f"has {len(LINES)} characters"),
        ):
            refused = (await reader(engine).answer(turn, wrong)).error
            assert refused is not None
            assert refused.code == code
            assert words in refused.message
        last = await reader(engine).answer(turn, {"id": name, "offset": len(LINES) - 1})
    assert last.state is CallState.SUCCEEDED


# --- Pages ---

TEXTS = st.text(st.sampled_from("ab\nü\N{GRINNING FACE}"), min_size=1, max_size=300)


@promise("large results are paged through with a tool")
@given(TEXTS, st.integers(1, 60))
def test_the_pages_of_a_text_make_up_the_text(text: str, length: int) -> None:
    parts: list[str] = []
    offset = 0
    while True:
        said = page(text, "id", offset, length)
        head, _, rest = said.partition("\n")
        match = re.fullmatch(r"\[result id: characters (\d+) to (\d+) of (\d+)\]", head)
        assert match
        begins, ends, total = map(int, match.groups())
        assert (begins, total) == (offset, len(text))
        assert 0 < ends - begins <= length
        parts.append(rest[: ends - begins])
        if ends == total:
            assert said.endswith("\n[end of the result]")
            break
        assert said.endswith(f"offset {ends} …]")
        offset = ends
    assert "".join(parts) == text


@given(TEXTS, TEXTS, st.integers(0, 100))
def test_matches_are_at_the_offsets_in_the_answer(text: str, what: str, offset: int) -> None:
    said = found(text, "id", what[:2], offset, 2_000)
    offsets = [int(number) for number in re.findall(r"^offset (\d+): ", said, re.MULTILINE)]

    for at in offsets:
        assert at >= offset
        assert text[at:].lower().startswith(what[:2].lower())
    if what[:2].lower() in text[offset:].lower():
        assert offsets
    else:
        assert "does not occur" in said


def test_many_matches_are_counted_and_continue_at_an_offset() -> None:
    text = "x" * 100 + "needle" * 50
    said = found(text, "id", "NEEDLE", 0, 100_000)

    assert said.startswith("[result id: 50 matches from offset 0 on, 20 shown]\noffset 100: ")
    assert said.endswith("find it again from offset 220 on …]")
    assert found(text, "id", "needle", 220, 100_000).startswith("[result id: 30 matches from offset 220 on")


@pytest.mark.parametrize("what", ["a", "a" * 1000])
def test_matches_fit_into_a_result(what: str) -> None:
    assert len(found("a" * 100_000, "id", what, 0, 1_000)) <= 1_600


def test_no_character_gets_longer_without_its_case_so_offsets_stay() -> None:
    assert all(len(without_case(chr(code))) == 1 for code in range(0x110000))
