"""`tool_search {query}`: finds tools of the catalog for a model that is not offered all of them.

Tools are ranked with BM25 over the words of their names, titles, descriptions and parameters. Of equal ones the first
in alphabetical order comes first.
"""

import asyncio
import math
import re
import string
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any, cast

import msgspec

from callstream_runtime.long_texts import reading
from dialog_engine.context import tokens_of_text
from dialog_engine.model import Turn
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
MAX_WORDS = 32
"""The most words of a query that are looked for."""
MAX_LONGER = 50
"""The most longer words that one word of a query stands for."""
MAX_SPELLED = 40
"""The longest word that is also looked for in other spellings."""

_WORD = re.compile(r"[^\W_]+")
_CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(text: str) -> list[str]:
    """The words of a text or a name, in lower case, without a plural s: `listOpen_issues` gives list, open, issue."""
    return [_singular(word.lower()) for word in _WORD.findall(_CAMEL_CASE.sub(" ", text))]


class Ranking:
    """An index of the tools of one catalog."""

    def __init__(self, tools: Sequence[ToolEntry]) -> None:
        self._tools = tools
        counted = [Counter(_words_of(tool)) for tool in tools]
        self._lengths = [counts.total() for counts in counted]
        self._mean_length = sum(self._lengths) / len(tools) if tools else 0.0
        self._places = defaultdict[str, list[tuple[int, int]]](list)
        """The numbers of the tools that have a word, and how often it counts there."""
        for number, counts in enumerate(counted):
            for word, times in counts.items():
                self._places[word].append((number, times))
        self._sorted = sorted(self._places)

    def best(self, query: str, limit: int) -> list[ToolEntry]:
        """At most `limit` tools that share a word with the query, best first. The tool with exactly this name is first.

        A word that no tool has is replaced by those that begin with it, or else by those that one slip of the pen makes
        of it: a letter that is missing, wrong, too much, or in the place of its neighbour.
        """
        asked = [*dict.fromkeys(words(query))][:MAX_WORDS]
        wanted = {known for word in asked for known in self._known(word)}
        exact = {query.strip().lower()}
        hits = [
            (not exact & {tool.name.lower(), tool.label.lower(), tool.tool.lower()}, -score, tool.name, tool)
            for number, score in self._scores(wanted).items()
            for tool in [self._tools[number]]
        ]
        return [tool for *_, tool in sorted(hits, key=lambda hit: hit[:3])[:limit]]

    def _known(self, word: str) -> Collection[str]:
        if word in self._places:
            return (word,)
        return self._longer(word) or {slip for slip in _slips(word) if slip in self._places}

    def _longer(self, word: str) -> list[str]:
        if len(word) < MIN_PREFIX:
            return []
        first = bisect_left(self._sorted, word)
        return [*takewhile(lambda known: known.startswith(word), self._sorted[first : first + MAX_LONGER])]

    def _scores(self, wanted: set[str]) -> Mapping[int, float]:
        """By the numbers of the tools that have one of these words."""
        scores = defaultdict[int, float](float)
        for word in sorted(wanted):  # sorted, because a sum of floats depends on the order
            rarity = self._rarity(len(self._places[word]))
            for number, times in self._places[word]:
                length = 1 - _B + _B * self._lengths[number] / (self._mean_length or 1.0)
                scores[number] += rarity * times * (_K1 + 1) / (times + _K1 * length)
        return scores

    def _rarity(self, frequency: int) -> float:
        return math.log(1 + (len(self._tools) - frequency + 0.5) / (frequency + 0.5))


def _words_of(tool: ToolEntry) -> Iterator[str]:
    yield from words(tool.label) * _NAME
    yield from words(tool.title or "") * _TITLE
    properties: object = tool.input_schema.get("properties")
    parameters = cast("Mapping[str, object]", properties) if isinstance(properties, dict) else ()
    yield from words(f"{tool.server} {tool.description} {' '.join(parameters)}") * _REST


def _slips(word: str) -> Iterator[str]:
    """The words that one slip of the pen makes of this one. Their number depends on its length alone."""
    if not MIN_PREFIX < len(word) <= MAX_SPELLED:
        return
    for at in range(len(word) + 1):
        before, after = word[:at], word[at:]
        yield before + after[1:]
        yield before + after[1:2] + after[:1] + after[2:]
        for letter in string.ascii_lowercase + string.digits:
            yield before + letter + after
            yield before + letter + after[1:]


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


class FoundTools(msgspec.Struct, frozen=True, omit_defaults=True):
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
        yield from (tool.name for tool in msgspec.json.decode(line, type=FoundTools).tools)
    except msgspec.DecodeError:
        yield from _NAME_IN.findall(line) if line.startswith(_ANSWER_PREFIX) else ()


def without(content: str, names: Collection[str]) -> str:
    """The content of an answer without these tools, which a model is not offered. Other content is unchanged."""
    line, gap, note = content.partition("\n")
    try:
        parsed = msgspec.json.decode(line, type=FoundTools)
    except msgspec.DecodeError:
        return content
    kept = tuple(tool for tool in parsed.tools if tool.name not in names)
    if len(kept) == len(parsed.tools):
        return content
    return msgspec.json.encode(FoundTools(kept, parsed.note or ("" if kept else _NONE_LEFT))).decode() + gap + note


def answer(ranking: Ranking, catalog: Sequence[ToolEntry], query: str, limit: int) -> FoundTools:
    """The tools that fit the query best, or a note when none does."""
    best = ranking.best(query, limit)
    if not best:
        servers = ", ".join([*by_server(catalog)][:MAX_SERVERS])
        return FoundTools((), f"No tool has to do with that. Use other words, or the name of a server: {servers}.")
    described: list[Found] = []
    left = ANSWER_TOKENS
    for tool in best:
        left -= tokens_of_text(msgspec.json.encode(tool.input_schema).decode())
        described.append(Found(tool.name, tool.description[:MAX_DESCRIPTION], tool.input_schema if left >= 0 else None))
    return FoundTools(tuple(described))


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
        source = self._source.visible_to(turn.subject, turn.roles, turn.choice.tools)
        catalog = source.tools()
        if not catalog and isinstance(why := source.find(NAME), ToolError):
            return ToolOutcome(CallState.FAILED, error=why)
        ranking = await self._ranking(catalog)
        limit = arguments.get("limit", DEFAULT_LIMIT)
        found = await reading(len(catalog) * MAX_WORDS, answer, ranking, catalog, arguments["query"], limit)
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
