"""Tools that the engine answers itself are offered, validated, shown and stored like any other."""

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialog_engine.model import MessageFinished, ToolCall, ToolMessage, ToolStatus, ToolStep, Turn
from dialog_engine.tool_calls.local_tools import LocalTool, answered, local_entry
from dialog_engine.tool_calls.planning import CallLimits
from dialog_engine.tool_calls.results.steps import status_of
from dialog_engine.tool_calls.values import Runnable
from plugins_contract.catalog import ToolEntry, exposed_name
from plugins_contract.outcomes import ToolOutcome
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, steps_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, succeeded, tool
from tests.support.waiting import wait_until

SCHEMA = {"type": "object", "properties": {"page": {"type": "integer"}}, "required": ["page"]}


class Book(LocalTool):
    """Answers at once, or never; or raises."""

    def __init__(self, *, error: Exception | None = None, hangs: bool = False) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self._error = error
        self._hangs = hangs

    @property
    def entry(self) -> ToolEntry:
        return local_entry("read_book", "Read a page.", SCHEMA, title="Book")

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        self.asked.append((turn.turn_id, arguments))
        if self._error:
            raise self._error
        if self._hangs:
            await asyncio.Event().wait()
        return succeeded(f"page {arguments['page']}")


def engine(model: ScriptedModel, book: Book) -> FakeEngine:
    return FakeEngine(model, tools=FakeCatalog(tool("a__b")), local=[book])


@promise("tools of the engine's own are answered without a worker, and shown and stored like any other")
async def test_a_local_tool_is_offered_beside_the_others_and_answered_without_a_worker() -> None:
    model, book = ScriptedModel(asks(("read_book", '{"page": 7}'), ("a__b", "")), says("Done.")), Book()
    async with engine(model, book) as s:
        turn = await s.turns.start("someone", None, "Read!")
        events = await s.seen(turn)

        assert [entry.name for entry in model.requests[0].tools] == ["a__b", "read_book"]
        assert book.asked == [(turn.turn_id, {"page": 7})]
        assert model.requests[1].messages[-2] == ToolMessage("call_1", "read_book", "page 7")
        assert len(s.worker.executed) == 1  # a__b
        assert s.store.begun.count("add_result") == 1  # of a__b: the local outcome came with the round
        shown = [e for e in events if isinstance(e, ToolStep) and e.call.name == "read_book"]
        assert [(step.status, step.server) for step in shown] == [
            (ToolStatus.PENDING, "callstream"),
            (ToolStatus.SUCCEEDED, "callstream"),
        ]
        assert shown[0].details == {"arguments": {"page": 7}, "title": "Book"}
        [stored, _] = [r for r in await s.store.archive.turn_messages(turn.turn_id) if r.role == "assistant"]
        assert stored.calls[0].server == "callstream"


async def test_the_calls_of_local_tools_are_limited_in_a_turn() -> None:
    read = ("read_book", '{"page": 7}')
    model, book = ScriptedModel(asks(read, read), asks(read), says("Done.")), Book()
    limits = CallLimits(own_per_turn=2)
    async with FakeEngine(model, tools=FakeCatalog(tool("a__b")), local=[book], limits=limits) as s:
        turn = await s.turns.start("someone", None, "Read!")
        await s.seen(turn)

        assert len(book.asked) == 2
        refused = model.requests[2].messages[-1]
        assert isinstance(refused, ToolMessage)
        assert "2 times at most (MAX_OWN_CALLS_PER_TURN)" in refused.content


@pytest.mark.parametrize(
    ("page", "reached", "said"),
    [
        ('"seven"', 0, "INVALID_ARGUMENTS: page: 'seven' is not of type 'integer'"),
        ("1", 1, "UNKNOWN_ERROR: read_book failed, for an internal reason"),
    ],
)
async def test_wrong_arguments_never_reach_it_and_an_exception_fails_only_this_call_and_is_not_shown(
    page: str, reached: int, said: str
) -> None:
    book = Book(error=KeyError("secret"))
    model = ScriptedModel(asks(("read_book", f'{{"page": {page}}}')), says("Sorry."))
    async with engine(model, book) as s:
        events = await s.turn("Read!")

    assert (len(book.asked), steps_of(events)) == (reached, [ToolStatus.PENDING, ToolStatus.FAILED])
    assert model.requests[1].messages[-1] == ToolMessage("call_1", "read_book", f"Error {said}", failed=True)
    assert done_of(events).reason == "stop"


async def test_a_local_tool_that_hangs_is_ended_by_a_timeout() -> None:
    book = Book(hangs=True)
    call = Runnable(ToolCall("call_1", "c", "read_book", '{"page": 1}'), book.entry, {"page": 1})
    ended = await answered(book, Turn("turn", "session", "someone"), call, seconds=0.01)
    assert status_of(ended.outcome) is ToolStatus.TIMEOUT


async def test_stopping_while_a_local_tool_runs_stores_nothing() -> None:
    model, book = ScriptedModel(asks(("read_book", '{"page": 1}'), text="I look.")), Book(hangs=True)
    async with engine(model, book) as s:
        turn = await s.turns.start("someone", None, "Read!")
        await wait_until(lambda: book.asked)
        s.turns.stop(turn.turn_id)
        events = await s.seen(turn)

    assert done_of(events).reason == "cancelled"
    assert steps_of(events) == []
    [message] = [event.message for event in events if isinstance(event, MessageFinished)]
    assert (message.content, message.tool_calls, message.interrupted) == ("I look.", (), True)


def test_invalid_names_of_local_tools_are_refused() -> None:
    for name in ("", "x", "a__b", "Read", "read-it", "read_", "_read", "a" * 41, "läs"):
        with pytest.raises(ValueError, match="cannot be the name of a local tool"):
            local_entry(name, "", {})


@given(st.text(max_size=80), st.text(max_size=80))
def test_no_name_in_the_catalog_is_valid_for_a_local_tool(server: str, own: str) -> None:
    with pytest.raises(ValueError, match="cannot be the name of a local tool"):
        local_entry(exposed_name(server, own), "", {})
