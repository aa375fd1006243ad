"""Which tools fit a query best: BM25 over the words of what is known of each. Pure, equals in alphabetical order."""

import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import Self, cast

from dialog_engine.tool_calls.slices import Slices
from plugins_contract.catalog import ToolEntry

_K1, _B = 1.2, 0.75
_NAME, _TITLE, _REST = 4, 2, 1
"""How often a word counts, by where it stands."""

MIN_BEGINNING = 3
"""Characters that stand for every word that begins with them."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def words(text: str) -> list[str]:
    """The words of a text or a name, in lower case, without a plural s: `listOpen_issues` gives list, open, issue."""
    return [_singular(word.lower()) for word in _WORD.findall(_HUMP.sub(" ", text))]


class Ranking:
    """The tools of one catalog, ready to be searched."""

    def __init__(self) -> None:
        self._tools: list[ToolEntry] = []
        self._counts: list[Counter[str]] = []
        self._lengths: list[int] = []
        self._words = 0
        self._having: Counter[str] = Counter()

    @classmethod
    def of(cls, tools: Sequence[ToolEntry]) -> Slices[Self]:
        """An index of these tools."""
        ranking = cls()
        for tool in tools:
            ranking._add(tool)
            yield
        return ranking

    def _add(self, tool: ToolEntry) -> None:
        counts = Counter(_words_of(tool))
        self._tools.append(tool)
        self._counts.append(counts)
        self._lengths.append(counts.total())
        self._words += counts.total()
        self._having.update(counts.keys())

    def best(self, query: str, limit: int) -> list[ToolEntry]:
        """At most `limit` tools that share a word with the query, best first. A tool's exact name comes before all.

        A word that no tool has stands for those that begin with it, or else for those that are spelled much like it.
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
        if word in self._having:
            return (word,)
        longer = [known for known in self._having if known.startswith(word)] if len(word) >= MIN_BEGINNING else []
        return longer or get_close_matches(word, self._having, n=3, cutoff=0.8)

    def _score(self, number: int, wanted: set[str]) -> float:
        counts = self._counts[number]
        mean = self._words / len(self._tools) or 1.0
        long = 1 - _B + _B * self._lengths[number] / mean
        return sum(
            self._rarity(word) * counts[word] * (_K1 + 1) / (counts[word] + _K1 * long)
            for word in sorted(wanted)  # in one order: sums of floats depend on it
            if word in counts
        )

    def _rarity(self, word: str) -> float:
        having = self._having[word]
        return math.log(1 + (len(self._tools) - having + 0.5) / (having + 0.5))


def _words_of(tool: ToolEntry) -> Iterator[str]:
    yield from words(tool.tool) * _NAME
    yield from words(tool.title or "") * _TITLE
    properties: object = tool.input_schema.get("properties")
    parameters = cast("Mapping[str, object]", properties) if isinstance(properties, dict) else ()
    yield from words(f"{tool.server} {tool.description} {' '.join(parameters)}") * _REST


def _singular(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
