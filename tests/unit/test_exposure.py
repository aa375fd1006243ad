"""How a catalog is offered: the mode, what a search finds, and which found tools stay offered."""

import asyncio
import threading
from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from dialog_engine.context import tokens_of_tool
from dialog_engine.model import AssistantMessage, Message, ToolCall, ToolMessage, Turn, UserMessage
from dialog_engine.tool_calls.exposure import gateway, search
from dialog_engine.tool_calls.exposure.exposure import MAX_TOOLS, Exposure, ExposureMode, Room, found
from dialog_engine.tool_calls.exposure.search import Ranking, words
from dialog_engine.tool_calls.local_tools import local_entry
from dialog_engine.tool_calls.pipeline import TurnContext
from dialog_engine.tool_calls.processors import ToolPreparation
from plugins_contract.catalog import ToolEntry
from tests.marks import promise
from tests.support.fakes.models import MemoryBand, ScriptedModel
from tests.support.fakes.worker import FakeCatalog, tool

DIRECT, GATEWAY, SEARCH, AUTO = ExposureMode
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
CATALOG = (
    tool("mail__send_message", TEXT, description="Sends an e-mail to one or more people."),
    tool("mail__listFolders", TEXT, title="Folders", description="What folders there are."),
    tool("notes__add_note", TEXT, description="Keeps a note. It can be sent by mail later."),
    tool("weather__forecast", {"properties": {"city": {}}}, description="Tells what the days will be like."),
    tool("weather__forecast_hourly", {"properties": {"city": {}}}, description="The same for hours."),
)
OWN = local_entry("read_book", "", {})
COST = sum(map(tokens_of_tool, CATALOG))


def names(tools: tuple[ToolEntry, ...] | list[ToolEntry]) -> list[str]:
    return [entry.name for entry in tools]


def searched(*found: str) -> Message:
    answer = search.FoundTools(tuple(search.Found(name, "") for name in found))
    return ToolMessage("call_1", "tool_search", msgspec.json.encode(answer).decode())


def called(name: str, meant: str = "") -> Message:
    return AssistantMessage("", (ToolCall("call_1", "id", name, "{}", tool=meant),))


# --- Modes ----------------------------------------------------------------------------------------------------------


@promise("a catalog that outgrows the budget is searched, and what was found stays on offer")
@pytest.mark.parametrize(
    ("mode", "budget", "in_force", "offered"),
    [
        (DIRECT, 1, DIRECT, names(CATALOG)),
        (GATEWAY, 100_000, GATEWAY, ["mcp_query"]),
        (SEARCH, 100_000, SEARCH, ["tool_search"]),
        (AUTO, COST, DIRECT, names(CATALOG)),
        (AUTO, COST - 1, SEARCH, ["tool_search"]),
    ],
)
def test_the_mode_depends_on_setting_and_budget(
    mode: ExposureMode, budget: int, in_force: ExposureMode, offered: list[str]
) -> None:
    exposure = Exposure(mode, budget)

    assert exposure.in_force(CATALOG).mode is in_force
    assert exposure.in_force(CATALOG).tokens == COST
    assert names(exposure.offered(CATALOG, (), [OWN])) == [*offered, "read_book"]


@promise("no more tools are offered by themselves than providers take")
def test_auto_offers_no_more_tools_than_providers_accept() -> None:
    many = tuple(tool(f"a__t{n:03}") for n in range(MAX_TOOLS + 1))
    said = [searched(*names(many[:60])), searched(*names(many[60:]))]

    assert [Exposure(AUTO).in_force(c).mode for c in (many[1:], many)] == [DIRECT, SEARCH]
    assert len(found(many, said, Room(1_000_000))) == MAX_TOOLS
    assert many[-1] in found(many, said, Room(1_000_000))
    assert Exposure(DIRECT).in_force(many).offered == many


def test_a_changed_catalog_is_examined_again() -> None:
    exposure = Exposure(AUTO, COST)
    more = (*CATALOG, tool("a__b"))

    assert [exposure.in_force(c).mode for c in (CATALOG, more, CATALOG)] == [DIRECT, SEARCH, DIRECT]


# --- What was found -------------------------------------------------------------------------------------------------


@promise("a catalog that outgrows the budget is searched, and what was found stays on offer")
@pytest.mark.parametrize("mode", [SEARCH, GATEWAY, DIRECT])
def test_found_tools_are_offered_behind_the_others_and_read_result_from_the_first_shortened_result_on(
    mode: ExposureMode,
) -> None:
    exposure, reader = Exposure(mode), local_entry("read_result", "", {})
    cut = ToolMessage("call_1", "notes__add_note", "head … tail", cut=True)
    said: list[Message] = [UserMessage("Mail!")]
    offers = [names(exposure.offered(CATALOG, said, [OWN], reader))]
    for more in (searched("notes__add_note"), cut, searched("mail__send_message"), cut, called("weather__forecast")):
        said.append(more)
        offers.append(names(exposure.offered(CATALOG, said, [OWN], reader)))

    for earlier, later in pairwise(offers):
        assert later[: len(earlier)] == earlier
    assert ["read_result" in offered for offered in offers] == [False, False, True, True, True, True]
    if mode is SEARCH:
        later = ["notes__add_note", "read_result", "mail__send_message", "weather__forecast"]
        assert offers[-1] == ["tool_search", "read_book", *later]
    assert "read_result" not in names(exposure.offered(CATALOG, said, [OWN]))


@pytest.mark.parametrize(
    ("messages", "offered"),
    [
        ([searched("mail__send_message", "mail__send_message")], ["mail__send_message"]),
        ([searched("gone__tool")], []),
        ([called("mcp_query", "notes__add_note")], ["notes__add_note"]),
        ([called("tool_search")], []),
        ([ToolMessage("c", "tool_search", "Error TIMEOUT: tool_search had no answer")], []),
        ([ToolMessage("c", "tool_search", '{"tools": [{"name": 7}]}')], []),
        ([ToolMessage("c", "a__b", '{"tools": [{"name": "notes__add_note", "description": ""}]}')], []),
    ],
)
def test_what_counts_as_found(messages: list[Message], offered: list[str]) -> None:
    assert names(found(CATALOG, messages, Room(10_000))) == offered


def test_tools_beyond_the_budget_give_way_to_those_mentioned_last() -> None:
    said = [searched(entry.name) for entry in CATALOG]
    again = [*said, called("mail__send_message")]
    room = sum(map(tokens_of_tool, (CATALOG[0], CATALOG[4])))

    assert names(found(CATALOG, said, Room(room))) == names([CATALOG[3], CATALOG[4]])
    assert names(found(CATALOG, again, Room(room))) == names([CATALOG[0], CATALOG[4]])
    assert names(found(CATALOG, again, Room(1))) == names([CATALOG[0]])


def test_the_best_matches_of_a_search_are_kept() -> None:
    said = [searched(*names(CATALOG))]
    room = sum(map(tokens_of_tool, CATALOG[:2]))

    assert names(found(CATALOG, said, Room(room))) == names(CATALOG[:2])
    assert names(found(CATALOG, said, Room(1))) == names(CATALOG[:1])


# --- Search ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("query", "best"),
    [
        ("send", ["mail__send_message"]),
        ("Send an e-mail MESSAGE", ["mail__send_message"]),
        ("list folder", ["mail__listFolders"]),
        ("folders", ["mail__listFolders"]),
        ("city", ["weather__forecast", "weather__forecast_hourly"]),
        ("forecast", ["weather__forecast", "weather__forecast_hourly"]),
        ("hourly forecast", ["weather__forecast_hourly", "weather__forecast"]),
        ("weather__forecast_hourly", ["weather__forecast_hourly", "weather__forecast"]),
        ("fore", ["weather__forecast", "weather__forecast_hourly"]),
        ("forcast", ["weather__forecast", "weather__forecast_hourly"]),
        ("note mail", ["notes__add_note"]),
        ("send mail", ["mail__send_message"]),
        ("zebra", []),
        ("!?", []),
    ],
)
def test_the_best_match_comes_first(query: str, best: list[str]) -> None:
    hits = names(Ranking(CATALOG).best(query, 10))

    assert hits[: len(best)] == best
    assert bool(hits) == bool(best)


def test_broken_schemas_do_not_break_the_search() -> None:
    tools = [tool("a__one", {"properties": properties}) for properties in ([1], "x", None, {"one": 1})]

    assert len(Ranking(tools).best("one", 10)) == 4


def test_names_are_split_into_words_in_every_notation() -> None:
    assert " ".join(words("listOpen_issues-of HTTP2Servers, größe!")) == "list open issue of http2 server größe"


def test_an_answer_has_names_and_schemas_and_is_bounded() -> None:
    large = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(150)}}
    tools = [tool(f"a__tool_{n}", large, description="x" * 5_000) for n in range(20)]
    answer = search.answer(Ranking(tools), tools, "tool", 20)

    assert [each.name for each in answer.tools] == names(Ranking(tools).best("tool", 20))
    assert answer.tools[0].input_schema == large
    assert answer.tools[-1].input_schema is None
    assert len(msgspec.json.encode(answer)) < 4 * search.ANSWER_TOKENS + 20 * 400


def test_the_names_in_an_answer_can_be_read_back_and_those_left_in_a_shortened_one() -> None:
    answer = search.answer(Ranking(CATALOG), CATALOG, "forecast", 5)

    said = msgspec.json.encode(answer).decode() + "\n\n(You have asked this before.)"
    assert [*search.names_in(said)] == [each.name for each in answer.tools]
    assert [*search.names_in(said[: said.index("hourly")])] == ["weather__forecast"]


def test_an_empty_answer_names_the_servers() -> None:
    answer = search.answer(Ranking(CATALOG), CATALOG, "zebra", 5)

    assert answer.tools == ()
    assert answer.note.endswith("mail, notes, weather.")


def test_the_description_of_the_search_names_the_servers_up_to_a_limit() -> None:
    assert search.entry(CATALOG).description.endswith("mail (2), notes (1), weather (2).")
    crowd = [tool(f"server{n}__x") for n in range(100)]
    assert search.entry(crowd).description.endswith("server29 (1) and 70 more.")


# --- Very many tools ------------------------------------------------------------------------------------------------


@promise("very many tools do not delay other turns: the work on all of them is done in a thread, and once")
@pytest.mark.parametrize(
    "work", ["the list of the gateway", "the list of the gateway in a turn", "the index of a search"]
)
async def test_the_work_on_very_many_tools_is_done_once_and_in_a_thread(
    work: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []

    def entry(catalog: Sequence[ToolEntry], budget_tokens: int) -> ToolEntry:
        threads.append(threading.get_ident())
        return catalog[0]

    class Index(Ranking):
        def __init__(self, tools: Sequence[ToolEntry]) -> None:
            threads.append(threading.get_ident())
            super().__init__(tools)

    monkeypatch.setattr(gateway, "entry", entry)
    monkeypatch.setattr(search, "Ranking", Index)
    exposure, source = Exposure(GATEWAY), FakeCatalog(*CATALOG)
    preparation, tool_search = ToolPreparation(source, exposure), search.ToolSearch(source)
    turn = Turn("turn", "session", "subject")
    ctx = TurnContext(turn, ScriptedModel(), MemoryBand(), ())

    async def once() -> None:
        match work:
            case "the list of the gateway":
                await exposure.prepare(tuple(CATALOG))
            case "the list of the gateway in a turn":
                await preparation.process(ctx)
            case _:
                await tool_search.answer(turn, {"query": "mail"})

    await asyncio.gather(once(), once(), once())
    exposure.in_force(CATALOG)

    assert [thread for thread in threads if thread != threading.get_ident()] == threads[:1]
