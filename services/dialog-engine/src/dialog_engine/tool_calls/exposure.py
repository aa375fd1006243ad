"""How the tools of the catalog are offered to a model. What it may call is another matter: all of them, always.

- direct: each with its schema, in every request.
- gateway: one tool stands for all of them, see `gateway_entry`.
- search: the model looks for tools, and those it has found are offered from its next request on, see `tool_search`.
- auto: direct while all the schemas fit the budget, and providers take so many tools; else search.
"""

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain

from dialog_engine.model import AssistantMessage, Message, ToolMessage
from dialog_engine.tool_calls import gateway_entry, tool_search
from dialog_engine.tool_calls.costs import tokens_of_tool
from dialog_engine.tool_calls.slices import Slices, at_once, in_slices
from plugins_contract.catalog import ToolEntry

MAX_TOOLS = 120
"""So many tools of the catalog are offered at once, unless `direct` is set. OpenAI takes 128 in a request ("Expected
an array with maximum length 128"), among which are those of the engine's own."""


class ExposureMode(StrEnum):
    """The values of TOOL_EXPOSURE."""

    DIRECT = "direct"
    GATEWAY = "gateway"
    SEARCH = "search"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class InForce:
    """What a catalog is offered by: never `auto`. `tokens` is what all its schemas would cost in every request."""

    mode: ExposureMode
    tokens: int
    offered: tuple[ToolEntry, ...]
    """What is always offered: the whole catalog, or what stands in its place."""


class Exposure:
    """The setting, and the budget in tokens of what is offered of the catalog."""

    def __init__(self, mode: ExposureMode = ExposureMode.AUTO, budget_tokens: int = 12_000) -> None:
        self.mode = mode
        self.budget_tokens = budget_tokens
        self._last: tuple[tuple[ToolEntry, ...], InForce] | None = None
        self._preparing = asyncio.Lock()

    async def prepare(self, catalog: tuple[ToolEntry, ...]) -> None:
        """Decide how this catalog is offered without holding up the event loop: `in_force` then knows it at once."""
        async with self._preparing:
            if not self._knows(catalog):
                self._last = catalog, await in_slices(self._decided(catalog))

    def in_force(self, catalog: tuple[ToolEntry, ...]) -> InForce:
        """How this catalog is offered. Pure; the last answer is kept, because catalogs seldom change."""
        if self._last is not None and self._knows(catalog):
            return self._last[1]
        rule = at_once(self._decided(catalog))
        self._last = catalog, rule
        return rule

    def offered(
        self,
        catalog: tuple[ToolEntry, ...],
        messages: Sequence[Message],
        own: Sequence[ToolEntry] = (),
        reader: ToolEntry | None = None,
    ) -> tuple[ToolEntry, ...]:
        """What is offered after these messages; `own` are tools of the engine's that always are, `reader` one that is
        from the first result on that was cut.

        What comes later comes last, so that the beginning of the list stays as the provider has it in its cache: a
        tool that is of no use yet is not worth a place there.
        """
        rule = self.in_force(catalog)
        later = found(catalog, messages, self.budget_tokens) if rule.mode is ExposureMode.SEARCH else []
        cut = next((n for n, m in enumerate(messages, 1) if isinstance(m, ToolMessage) and m.cut), 0)
        if reader and cut:
            before = set(chain.from_iterable(map(_mentioned, messages[:cut])))
            later.insert(sum(tool.name in before for tool in later), reader)
        return (*rule.offered, *own, *later)

    def _knows(self, catalog: tuple[ToolEntry, ...]) -> bool:
        if self._last is None or self._last[0] != catalog:
            return False
        self._last = catalog, self._last[1]  # the same content as new objects is compared once
        return True

    def _decided(self, catalog: tuple[ToolEntry, ...]) -> Slices[InForce]:
        tokens = sum(map(tokens_of_tool, catalog))
        mode = self.mode
        if mode is ExposureMode.AUTO:
            few = tokens <= self.budget_tokens and len(catalog) <= MAX_TOOLS
            mode = ExposureMode.DIRECT if few else ExposureMode.SEARCH
        return InForce(mode, tokens, (yield from self._standing(mode, catalog)) if catalog else ())

    def _standing(self, mode: ExposureMode, catalog: tuple[ToolEntry, ...]) -> Slices[tuple[ToolEntry, ...]]:
        match mode:
            case ExposureMode.GATEWAY:
                return ((yield from gateway_entry.entry(catalog, self.budget_tokens)),)
            case ExposureMode.SEARCH:
                return (tool_search.entry(catalog),)
            case ExposureMode.DIRECT | ExposureMode.AUTO:
                return catalog


def found(catalog: Sequence[ToolEntry], messages: Sequence[Message], budget_tokens: int) -> list[ToolEntry]:
    """The tools that were found, or called, in these messages, in the order of their first mention.

    Where they outgrow the budget, or are too many, those that were not mentioned for longest are left out, and of one
    search the worst; the best of the last is always kept.
    """
    there = {tool.name: tool for tool in catalog}
    mentioned = [[name for name in _mentioned(message) if name in there] for message in messages]
    kept: set[str] = set()
    tokens = 0
    for name in dict.fromkeys(chain.from_iterable(reversed(mentioned))):
        tokens += tokens_of_tool(there[name])
        if kept and (tokens > budget_tokens or len(kept) == MAX_TOOLS):
            break
        kept.add(name)
    return [there[name] for name in dict.fromkeys(chain.from_iterable(mentioned)) if name in kept]


def _mentioned(message: Message) -> Iterator[str]:
    match message:
        case AssistantMessage(tool_calls=calls):
            yield from (call.tool_name for call in calls)
        case ToolMessage(name=tool_search.NAME, content=content):
            yield from tool_search.names_in(content)
        case _:
            pass
