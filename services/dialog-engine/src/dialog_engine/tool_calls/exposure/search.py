"""`tool_search {query}`: finds tools of the catalog for a model that is not offered all of them.

Tools are ranked with BM25 over the words of their names, titles, descriptions and parameters. Of equal ones the first
in alphabetical order comes first.
"""

import asyncio
import math
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, cast

import msgspec

from dialog_engine.model import Turn
from dialog_engine.tokens import tokens_of_text
from dialog_engine.tool_calls.exposure.gateway import by_server
from dialog_engine.tool_calls.local_tools import LocalTool, local_entry
from dialog_engine.tool_calls.ports import ToolSource
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import CallState, TextBlock, ToolError, ToolOutcome

_K1, _B = 1.2, 0.75
_NAME, _TITLE, _REST = 4, 2, 1
"""How often a word counts, by where it is found."""

MIN_PREFIX = 3
"""The shortest word of a query that also matches longer words that begin with it."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(text: str) -> list[str]:
    """The words of a text or a name, in lower case, without a plural s: `listOpen_issues` gives list, open, issue."""
    return [_singular(word.lower()) for word in _WORD.findall(_CAMEL_CASE.sub(" ", text))]


class Ranking:
    """An index of the tools of one catalog."""

    def __init__(self, tools: Sequence[ToolEntry]) -> None:
        self._tools = tools
        self._counts = [Counter(_words_of(tool)) for tool in tools]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean_length = sum(self._lengths) / len(tools) if tools else 0.0
        self._frequency = Counter(word for counts in self._counts for word in counts)
        """The number of tools that have a word."""

    def best(self, query: str, limit: int) -> list[ToolEntry]:
        """At most `limit` tools that share a word with the query, best first. The tool with exactly this name is first.

        A word that no tool has is replaced by those that begin with it, or else by those that are spelled similarly.
        """
        wanted = {known for word in words(query) for known in self._known(word)}
        scored = ((self._score(n, wanted), tool) for n, tool in enumerate(self._tools))
        exact = {query.strip().lower()}
        hits = [
            (not exact & {tool.name.lower(), tool.tool.lower()}, -score, tool.name, tool)
            for score, tool in scored
            if score > 0
        ]
        return [tool for *_, tool in sorted(hits, key=lambda hit: hit[:3])[:limit]]

    def _known(self, word: str) -> Sequence[str]:
        if word in self._frequency:
            return (word,)
        longer = [known for known in self._frequency if known.startswith(word)] if len(word) >= MIN_PREFIX else []
        return longer or get_close_matches(word, self._frequency, n=3, cutoff=0.8)

    def _score(self, number: int, wanted: set[str]) -> float:
        counts = self._counts[number]
        length = 1 - _B + _B * self._lengths[number] / (self._mean_length or 1.0)
        return sum(
            self._rarity(word) * counts[word] * (_K1 + 1) / (counts[word] + _K1 * length)
            for word in sorted(wanted)  # sorted, because a sum of floats depends on the order
            if word in counts
        )

    def _rarity(self, word: str) -> float:
        frequency = self._frequency[word]
        return math.log(1 + (len(self._tools) - frequency + 0.5) / (frequency + 0.5))


def _words_of(tool: ToolEntry) -> Iterator[str]:
    yield from words(tool.tool) * _NAME
    yield from words(tool.title or "") * _TITLE
    properties: object = tool.input_schema.get("properties")
    parameters = cast("Mapping[str, object]", properties) if isinstance(properties, dict) else ()
    yield from words(f"{tool.server} {tool.description} {' '.join(parameters)}") * _REST


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word


NAME = "tool_search"
DEFAULT_LIMIT, MAX_LIMIT = 5, 20
ANSWER_TOKENS = 2_000
"""The most tokens that the schemas in an answer may cost."""
MAX_DESCRIPTION = 300
"""Characters of a description in an answer."""
MOST_CATALOGS = 8
"""For how many catalogs the index is kept: senders with different rights have different ones."""
MAX_SERVERS = 30
"""The most servers that the description names."""

_INPUT = {
    "type": "object",
    "properties": {
        "query": {"type": "string", "minLength": 1, "maxLength": 500, "description": "What the tool should do."},
        "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "default": DEFAULT_LIMIT},
    },
    "required": ["query"],
}
_ANSWER_PREFIX = '{"tools":[{'
_NAME_IN = re.compile(r'\{"name":"([a-zA-Z0-9_-]+)","description":')
_NONE_LEFT = "What fits cannot be used at the moment. Use other words, or do without."
_ABOUT = "Find tools by what they do. You can call each tool that is found, by its name, from your next message on."


class Found(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tool in an answer. The schema is left out when it would be too long."""

    name: str
    description: str
    input_schema: dict[str, Any] | None = None


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """An answer, with the best match first. `note` says what else to try when nothing was found."""

    tools: tuple[Found, ...]
    note: str = ""


def entry(catalog: Sequence[ToolEntry]) -> ToolEntry:
    """The tool that the model is offered. Its description names the servers and their numbers of tools."""
    servers = [f"{server} ({len(tools)})" for server, tools in by_server(catalog).items()]
    more = f" and {len(servers) - MAX_SERVERS} more" if len(servers) > MAX_SERVERS else ""
    return local_entry(
        NAME, f"{_ABOUT} Servers and their number of tools: {', '.join(servers[:MAX_SERVERS])}{more}.", _INPUT
    )


def names_in(content: str) -> Iterator[str]:
    """The names of the tools in the content of a result; none when it is an error.

    An answer is one line, and a note to the model may follow it. Of a shortened one, the names that are left.
    """
    line = content.partition("\n")[0]
    try:
        yield from (tool.name for tool in msgspec.json.decode(line, type=Answer).tools)
    except msgspec.DecodeError:
        yield from _NAME_IN.findall(line) if line.startswith(_ANSWER_PREFIX) else ()


def without(content: str, names: Collection[str]) -> str:
    """The content of an answer without these tools, which a model is not offered. Other content is unchanged."""
    line, gap, note = content.partition("\n")
    try:
        parsed = msgspec.json.decode(line, type=Answer)
    except msgspec.DecodeError:
        return content
    kept = tuple(tool for tool in parsed.tools if tool.name not in names)
    if len(kept) == len(parsed.tools):
        return content
    return msgspec.json.encode(Answer(kept, parsed.note or ("" if kept else _NONE_LEFT))).decode() + gap + note


def answer(ranking: Ranking, catalog: Sequence[ToolEntry], query: str, limit: int) -> Answer:
    """The tools that fit the query best, or a note when none does."""
    best = ranking.best(query, limit)
    if not best:
        servers = ", ".join([*by_server(catalog)][:MAX_SERVERS])
        return Answer((), f"No tool has to do with that. Use other words, or the name of a server: {servers}.")
    described: list[Found] = []
    left = ANSWER_TOKENS
    for tool in best:
        left -= tokens_of_text(msgspec.json.encode(tool.input_schema).decode())
        described.append(Found(tool.name, tool.description[:MAX_DESCRIPTION], tool.input_schema if left >= 0 else None))
    return Answer(tuple(described))


class ToolSearch(LocalTool):
    """Searches the tools that the source has when it is called."""

    def __init__(self, source: ToolSource) -> None:
        self._source = source
        self._recent: list[tuple[tuple[ToolEntry, ...], Ranking]] = []
        self._indexing = asyncio.Lock()

    @property
    def entry(self) -> ToolEntry:
        return local_entry(NAME, _ABOUT, _INPUT)

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        source = self._source.visible_to(turn.subject, turn.roles)
        catalog = source.tools()
        if not catalog and isinstance(why := source.find(NAME), ToolError):
            return ToolOutcome(CallState.FAILED, error=why)
        ranking = await self._ranking(catalog)
        found = answer(ranking, catalog, arguments["query"], arguments.get("limit", DEFAULT_LIMIT))
        return ToolOutcome(CallState.SUCCEEDED, (TextBlock(msgspec.json.encode(found).decode()),))

    async def _ranking(self, catalog: tuple[ToolEntry, ...]) -> Ranking:
        """The index of the catalog. It is built in a thread, and kept: one for each set of rights."""
        async with self._indexing:
            for known, ranking in self._recent:
                if known == catalog:
                    return ranking
            ranking = await asyncio.to_thread(Ranking, catalog)
            self._recent = [*self._recent[1 - MOST_CATALOGS :], (catalog, ranking)]
            return ranking
