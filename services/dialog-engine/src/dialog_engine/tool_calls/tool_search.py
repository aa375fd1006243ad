"""`tool_search {query}`: finds tools of the catalog for a model that is not offered all of them."""

import asyncio
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any

import msgspec

from dialog_engine.model import Turn
from dialog_engine.tool_calls.costs import tokens_of_text
from dialog_engine.tool_calls.gateway_entry import by_server
from dialog_engine.tool_calls.local_tools import LocalTool, local_entry
from dialog_engine.tool_calls.ports import ToolSource
from dialog_engine.tool_calls.ranking import Ranking
from dialog_engine.tool_calls.slices import in_slices
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import CallState, TextBlock, ToolError, ToolOutcome

NAME = "tool_search"
DEFAULT_LIMIT, MAX_LIMIT = 5, 20
ANSWER_TOKENS = 2_000
"""What the schemas in an answer may cost together: a tool that is found is offered with its schema anyway."""
MAX_DESCRIPTION = 300
"""Characters of a description in an answer."""
MAX_SERVERS = 30
"""Servers that the model is told of."""

_INPUT = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 500, "description": "What the tool should do."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    },
    "required": ["query"],
}
_BEGINNING = '{"tools":[{'
_NAME_IN = re.compile(r'\{"name":"([a-zA-Z0-9_-]+)","description":')
_NONE_LEFT = "What fits cannot be used at the moment. Use other words, or do without."
_ABOUT = "Find tools by what they do. You can call each tool that is found, by its name, from your next message on."


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool in an answer. Without its schema where that would be too long."""

    name: str
    description: str
    input_schema: dict[str, Any] | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the model is answered, best first. `note` helps on when nothing was found."""

    tools: tuple[Found, ...]
    note: str = ""


def entry(catalog: Sequence[ToolEntry]) -> ToolEntry:
    """What the model is offered: it says what there is to be found."""
    servers = [f"{server} ({len(tools)})" for server, tools in by_server(catalog).items()]
    more = f" and {len(servers) - MAX_SERVERS} more" if len(servers) > MAX_SERVERS else ""
    return local_entry(
        NAME, f"{_ABOUT} Servers and their number of tools: {', '.join(servers[:MAX_SERVERS])}{more}.", _INPUT
    )


def names_in(content: str) -> Iterator[str]:
    """The tools that an answer names; none when it is not an answer but an error.

    An answer is one line, and what follows it is a note to the model. Of one that was cut, the names that are left.
    """
    line = content.partition("\n")[0]
    try:
        yield from (tool.name for tool in msgspec.json.decode(line, type=Answer).tools)
    except msgspec.DecodeError:
        yield from _NAME_IN.findall(line) if line.startswith(_BEGINNING) else ()


def without(content: str, names: Collection[str]) -> str:
    """An answer for a model that is not offered these tools: it does not hear of them. Anything else stays as it is."""
    line, gap, note = content.partition("\n")
    try:
        told = msgspec.json.decode(line, type=Answer)
    except msgspec.DecodeError:
        return content
    kept = tuple(tool for tool in told.tools if tool.name not in names)
    if len(kept) == len(told.tools):
        return content
    return msgspec.json.encode(Answer(kept, told.note or ("" if kept else _NONE_LEFT))).decode() + gap + note


def answer(ranking: Ranking, catalog: Sequence[ToolEntry], query: str, limit: int) -> Answer:
    """The tools that fit the query best."""
    best = ranking.best(query, limit)
    if not best:
        servers = ", ".join([*by_server(catalog)][:MAX_SERVERS])
        return Answer((), f"No tool has to do with that. Use other words, or the name of a server: {servers}.")
    told: list[Found] = []
    left = ANSWER_TOKENS
    for tool in best:
        left -= tokens_of_text(msgspec.json.encode(tool.input_schema).decode())
        told.append(Found(tool.name, tool.description[:MAX_DESCRIPTION], tool.input_schema if left >= 0 else None))
    return Answer(tuple(told))


class ToolSearch(LocalTool):
    """Searches what the source has at the time."""

    def __init__(self, source: ToolSource) -> None:
        self._source = source
        self._last: tuple[tuple[ToolEntry, ...], Ranking] | None = None
        self._indexing = asyncio.Lock()

    @property
    def entry(self) -> ToolEntry:
        return local_entry(NAME, _ABOUT, _INPUT)

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        catalog = self._source.tools()
        if not catalog and isinstance(why := self._source.find(NAME), ToolError):
            return ToolOutcome(CallState.FAILED, error=why)
        ranking = await self._ranking(catalog)
        found = answer(ranking, catalog, arguments["query"], arguments.get("limit", DEFAULT_LIMIT))
        return ToolOutcome(CallState.SUCCEEDED, (TextBlock(msgspec.json.encode(found).decode()),))

    async def _ranking(self, catalog: tuple[ToolEntry, ...]) -> Ranking:
        """That of the last search, while the catalog is the same."""
        async with self._indexing:
            if self._last is None or self._last[0] != catalog:
                self._last = catalog, await in_slices(Ranking.of(catalog))
            return self._last[1]
