"""A model reads the rest of a long result of its own session, in pages or by search."""

import json
import re
import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import ChatRequest, ToolMessage, Turn
from dialog_engine.tool_calls.results.read_result import ReadResult, found, page, without_case
from dialog_engine.tool_calls.results.texts import model_text
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.marks import promise
from tests.support.fakes import (
    FakeCatalog,
    FakeEngine,
    FakeWorker,
    ScriptedModel,
    asks,
    gives,
    says,
    steps_of,
    succeeded,
    tool,
)

pytestmark = pytest.mark.anyio

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


def read(name: str, **arguments: Any) -> tuple[str, str]:
    return "read_result", json.dumps({"id": name, **arguments})


async def cut(engine: FakeEngine, model: ScriptedModel) -> tuple[Turn, str, int]:
    """A finished turn with a result that was cut: its name, and where it was cut."""
    turn = await engine.turns.start("someone", None, "Read the logs!")
    await engine.seen(turn)
    return turn, *named(last_result(model.requests[1]))


def scripted() -> ScriptedModel:
    return ScriptedModel(asks(("logs__read", "")), says("Done."))


# --- In a turn ---


async def test_a_model_reads_the_rest_of_a_shortened_result_in_the_same_turn() -> None:
    class Curious(ScriptedModel):
        """Reads on where the result says, then answers."""

        def __call__(self, request: ChatRequest) -> Any:
            if len(self.requests) == 1:
                name, offset = named(last_result(request))
                self._replies.insert(0, asks(read(name, offset=offset)))
            return super().__call__(request)

    model = Curious(asks(("logs__read", "")), says("Done."))
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        events = await engine.turn("Read the logs!")

    offered = [[entry.name for entry in request.tools] for request in model.requests]
    assert offered == [["logs__read"], ["logs__read", "read_result"], ["logs__read", "read_result"]]
    shown = last_result(model.requests[1])
    assert shown.cut
    assert len(shown.content) < 16_200
    assert shown.content.startswith("entry 0: hay\n")
    assert shown.content.endswith("entry 49999: hay\n")
    name, offset = named(shown)
    answer = last_result(model.requests[2])
    assert answer.content.startswith(f"[result {name}: characters {offset} to ")
    assert LINES[offset : offset + 10_000] in answer.content
    assert not answer.cut
    assert len(answer.content) <= 16_000
    assert steps_of(events, "read_result") == ["pending", "succeeded"]


async def test_read_result_is_not_offered_without_a_shortened_result() -> None:
    model = scripted()
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker()) as engine:
        await engine.turn("Read the logs!")

    assert {tuple(entry.name for entry in request.tools) for request in model.requests} == {("logs__read",)}


async def test_read_result_is_offered_from_the_start_of_the_next_turn() -> None:
    model = ScriptedModel(asks(("logs__read", "")), says("Done."), says("Yes?"))
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        turn, _, _ = await cut(engine, model)
        await engine.turn("And?", turn.session_id)

    assert [entry.name for entry in model.requests[2].tools] == ["logs__read", "read_result"]


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


async def test_an_unknown_id_is_answered_with_existing_ones() -> None:
    model = scripted()
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        turn, name, _ = await cut(engine, model)
        for wrong in ("00000000", "%%%%%%%%", "________"):
            refused = await reader(engine).answer(turn, {"id": wrong})
            assert refused.error is not None
            assert refused.error.code == "RESOURCE_NOT_FOUND"
            assert f'Results that can be read: "{name}" of logs__read.' in refused.error.message


async def test_an_offset_past_the_end_is_answered_with_the_length() -> None:
    model = scripted()
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        turn, name, _ = await cut(engine, model)
        refused = await reader(engine).answer(turn, {"id": name, "offset": len(LINES)})
        last = await reader(engine).answer(turn, {"id": name, "offset": len(LINES) - 1})

    assert refused.error is not None
    assert refused.error.code == "INVALID_ARGUMENTS"
    assert f"has {len(LINES)} characters" in refused.error.message
    assert last.state is CallState.SUCCEEDED


@pytest.mark.parametrize(
    "arguments",
    [{}, {"id": "x"}, {"id": "12345678", "offset": -1}, {"id": "12345678", "offset": 1.5}, {"id": "12345678", "a": 1}],
)
async def test_invalid_arguments_of_read_result_are_refused_with_the_field(arguments: dict[str, Any]) -> None:
    model = ScriptedModel(asks(("read_result", json.dumps(arguments))), says("Done."))
    async with FakeEngine(model, tools=SHELF) as engine:
        await engine.turn("Read!")

    assert last_result(model.requests[1]).content.startswith("Error INVALID_ARGUMENTS: ")


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


async def test_one_line_in_a_large_result_is_found_by_its_text() -> None:
    model = scripted()
    async with FakeEngine(model, tools=SHELF, worker=FakeWorker(LONG)) as engine:
        turn, name, _ = await cut(engine, model)
        outcome: ToolOutcome = await reader(engine).answer(turn, {"id": name, "find": "needle"})

    assert f"offset {LINES.index('needle')}: …" in model_text(outcome)
    assert "entry 40000: needle" in model_text(outcome)


def test_a_search_takes_the_same_time_whatever_is_looked_for() -> None:
    """A comparison at each place took a thousand times the length of the text."""
    began = time.thread_time()
    assert "does not occur" in found("a" * 1_000_000, "id", "A" * 999 + "b", 0, 16_000)
    assert time.thread_time() - began < 0.2
    assert all(len(without_case(chr(code))) == 1 for code in range(0x110000))
