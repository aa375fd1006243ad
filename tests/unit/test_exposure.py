"""How a catalog is offered: which mode is in force, what a search finds, and what stays on offer. Pure."""

from collections.abc import Sequence
from itertools import pairwise

import msgspec
import pytest

from dialog_engine.model import AssistantMessage, Message, ToolCall, ToolMessage, UserMessage
from dialog_engine.tool_calls import tool_search
from dialog_engine.tool_calls.costs import tokens_of_tool
from dialog_engine.tool_calls.exposure import MAX_TOOLS, Exposure, ExposureMode, found
from dialog_engine.tool_calls.local_tools import local_entry
from dialog_engine.tool_calls.ranking import Ranking, words
from dialog_engine.tool_calls.slices import at_once
from plugins_contract.catalog import ToolEntry
from tests.support.fakes import tool

DIRECT, GATEWAY, SEARCH, AUTO = ExposureMode
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}}
CATALOGUE = (
    tool("mail__send_message", TEXT, description="Sends an e-mail to one or more people."),
    tool("mail__listFolders", TEXT, title="Folders", description="What folders there are."),
    tool("notes__add_note", TEXT, description="Keeps a note. It can be sent by mail later."),
    tool("weather__forecast", {"properties": {"city": {}}}, description="Tells what the days will be like."),
    tool("weather__forecast_hourly", {"properties": {"city": {}}}, description="The same for hours."),
)
OWN = local_entry("read_book", "", {})
COST = sum(map(tokens_of_tool, CATALOGUE))


def indexed(tools: Sequence[ToolEntry]) -> Ranking:
    return at_once(Ranking.of(tools))


def names(tools: tuple[ToolEntry, ...] | list[ToolEntry]) -> list[str]:
    return [entry.name for entry in tools]


def searched(*found: str) -> Message:
    answer = tool_search.Answer(tuple(tool_search.Found(name, "") for name in found))
    return ToolMessage("call_1", "tool_search", msgspec.json.encode(answer).decode())


def called(name: str, meant: str = "") -> Message:
    return AssistantMessage("", (ToolCall("call_1", "id", name, "{}", tool=meant),))


# --- Modes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mode", "budget", "in_force", "offered"),
    [
        (DIRECT, 1, DIRECT, names(CATALOGUE)),
        (GATEWAY, 100_000, GATEWAY, ["mcp_query"]),
        (SEARCH, 100_000, SEARCH, ["tool_search"]),
        (AUTO, COST, DIRECT, names(CATALOGUE)),
        (AUTO, COST - 1, SEARCH, ["tool_search"]),
    ],
)
def test_what_is_in_force(mode: ExposureMode, budget: int, in_force: ExposureMode, offered: list[str]) -> None:
    exposure = Exposure(mode, budget)

    assert exposure.in_force(CATALOGUE).mode is in_force
    assert exposure.in_force(CATALOGUE).tokens == COST
    assert names(exposure.offered(CATALOGUE, (), [OWN])) == [*offered, "read_book"]


def test_what_is_offered_by_itself_are_no_more_tools_than_providers_take() -> None:
    many = tuple(tool(f"a__t{n:03}") for n in range(MAX_TOOLS + 1))
    said = [searched(*names(many[:60])), searched(*names(many[60:]))]

    assert [Exposure(AUTO).in_force(c).mode for c in (many[1:], many)] == [DIRECT, SEARCH]
    assert len(found(many, said, 1_000_000)) == MAX_TOOLS
    assert many[-1] in found(many, said, 1_000_000)
    assert Exposure(DIRECT).in_force(many).offered == many


@pytest.mark.parametrize("mode", ExposureMode)
def test_where_there_are_no_tools_nothing_stands_in_their_place(mode: ExposureMode) -> None:
    assert Exposure(mode).offered((), ()) == ()


def test_a_catalog_that_changes_is_decided_on_anew() -> None:
    exposure = Exposure(AUTO, COST)
    more = (*CATALOGUE, tool("a__b"))

    assert [exposure.in_force(c).mode for c in (CATALOGUE, more, CATALOGUE)] == [DIRECT, SEARCH, DIRECT]


def test_the_estimate_is_a_quarter_of_the_bytes() -> None:
    entry = tool("a__b", {"type": "object"}, description="é" * 400)

    assert 800 / 4 < tokens_of_tool(entry) < 800 / 4 + 25


# --- What was found -------------------------------------------------------------------------------------------------


def test_what_was_found_is_offered_after_all_that_was_offered_before() -> None:
    exposure = Exposure(SEARCH)
    said: list[Message] = [UserMessage("Mail!")]
    offers = [names(exposure.offered(CATALOGUE, said, [OWN]))]
    for more in (searched("notes__add_note"), called("weather__forecast"), searched("mail__send_message")):
        said.append(more)
        offers.append(names(exposure.offered(CATALOGUE, said, [OWN])))

    assert offers[-1] == ["tool_search", "read_book", "notes__add_note", "weather__forecast", "mail__send_message"]
    for earlier, later in pairwise(offers):
        assert later[: len(earlier)] == earlier


@pytest.mark.parametrize("mode", [SEARCH, GATEWAY, DIRECT])
def test_the_reader_of_long_results_has_its_place_from_the_first_that_was_cut(mode: ExposureMode) -> None:
    exposure, reader = Exposure(mode), local_entry("read_result", "", {})
    cut = ToolMessage("call_1", "notes__add_note", "head … tail", cut=True)
    said: list[Message] = [UserMessage("Mail!")]
    offers = [names(exposure.offered(CATALOGUE, said, [OWN], reader))]
    for more in (searched("notes__add_note"), cut, searched("mail__send_message"), cut, called("weather__forecast")):
        said.append(more)
        offers.append(names(exposure.offered(CATALOGUE, said, [OWN], reader)))

    for earlier, later in pairwise(offers):
        assert later[: len(earlier)] == earlier
    assert ["read_result" in offered for offered in offers] == [False, False, True, True, True, True]
    if mode is SEARCH:
        later = ["notes__add_note", "read_result", "mail__send_message", "weather__forecast"]
        assert offers[-1] == ["tool_search", "read_book", *later]
    assert "read_result" not in names(exposure.offered(CATALOGUE, said, [OWN]))


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
    assert names(found(CATALOGUE, messages, 10_000)) == offered


def test_what_outgrows_the_budget_makes_room_for_what_was_mentioned_last() -> None:
    said = [searched(entry.name) for entry in CATALOGUE]
    again = [*said, called("mail__send_message")]
    room = sum(map(tokens_of_tool, (CATALOGUE[0], CATALOGUE[4])))

    assert names(found(CATALOGUE, said, room)) == names([CATALOGUE[3], CATALOGUE[4]])
    assert names(found(CATALOGUE, again, room)) == names([CATALOGUE[0], CATALOGUE[4]])
    assert names(found(CATALOGUE, again, 1)) == names([CATALOGUE[0]])


def test_of_one_search_the_best_are_kept() -> None:
    said = [searched(*names(CATALOGUE))]
    room = sum(map(tokens_of_tool, CATALOGUE[:2]))

    assert names(found(CATALOGUE, said, room)) == names(CATALOGUE[:2])
    assert names(found(CATALOGUE, said, 1)) == names(CATALOGUE[:1])


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
        ("zebra", []),
        ("!?", []),
    ],
)
def test_the_best_come_first(query: str, best: list[str]) -> None:
    hits = names(indexed(CATALOGUE).best(query, 10))

    assert hits[: len(best)] == best
    assert bool(hits) == bool(best)


def test_a_word_in_the_name_is_worth_more_than_one_in_the_description() -> None:
    assert names(indexed(CATALOGUE).best("note mail", 2))[0] == "notes__add_note"
    assert names(indexed(CATALOGUE).best("send mail", 3))[0] == "mail__send_message"


def test_an_exact_name_comes_before_all() -> None:
    longer = [tool(f"a__get_get_get_{n}", description="get get get") for n in range(5)]

    assert names(indexed([*longer, tool("z__get", description="x " * 200)]).best("get", 1)) == ["z__get"]


def test_equals_are_in_alphabetical_order_whatever_that_of_the_catalog() -> None:
    tools = [tool(f"a__same_{letter}", description="the same") for letter in "dbca"]

    assert names(indexed(tools).best("same", 3)) == ["a__same_a", "a__same_b", "a__same_c"]


def test_broken_schemas_do_not_break_the_search() -> None:
    tools = [tool("a__one", {"properties": properties}) for properties in ([1], "x", None, {"one": 1})]

    assert len(indexed(tools).best("one", 10)) == 4


def test_words_are_told_apart_in_every_way_of_writing() -> None:
    assert words("listOpen_issues-of HTTP2Servers, größe!") == [
        *["list", "open", "issue", "of", "http2", "server", "größe"]
    ]


def test_an_answer_has_names_and_schemas_and_is_bounded() -> None:
    large = {"type": "object", "properties": {f"field_{n}": {"type": "string"} for n in range(150)}}
    tools = [tool(f"a__tool_{n}", large, description="x" * 5_000) for n in range(20)]
    answer = tool_search.answer(indexed(tools), tools, "tool", 20)

    assert [each.name for each in answer.tools] == names(indexed(tools).best("tool", 20))
    assert answer.tools[0].input_schema == large
    assert answer.tools[-1].input_schema is None
    assert len(msgspec.json.encode(answer)) < 4 * tool_search.ANSWER_TOKENS + 20 * 400


def test_the_names_in_an_answer_can_be_read_back() -> None:
    answer = tool_search.answer(indexed(CATALOGUE), CATALOGUE, "forecast", 5)

    said = msgspec.json.encode(answer).decode() + "\n\n(You have asked this before.)"
    assert [*tool_search.names_in(said)] == [each.name for each in answer.tools]


def test_of_an_answer_that_was_cut_the_names_that_are_left_are_read_back() -> None:
    said = msgspec.json.encode(tool_search.answer(indexed(CATALOGUE), CATALOGUE, "forecast", 5)).decode()

    assert [*tool_search.names_in(said[:-5])] == ["weather__forecast", "weather__forecast_hourly"]
    assert [*tool_search.names_in(said[: said.index("hourly")])] == ["weather__forecast"]


def test_nothing_found_says_what_servers_there_are() -> None:
    answer = tool_search.answer(indexed(CATALOGUE), CATALOGUE, "zebra", 5)

    assert answer.tools == ()
    assert answer.note.endswith("mail, notes, weather.")


def test_the_search_says_what_there_is_to_be_found_and_no_more_of_it_than_is_of_use() -> None:
    assert tool_search.entry(CATALOGUE).description.endswith("mail (2), notes (1), weather (2).")
    crowd = [tool(f"server{n}__x") for n in range(100)]
    assert tool_search.entry(crowd).description.endswith("server29 (1) and 70 more.")
