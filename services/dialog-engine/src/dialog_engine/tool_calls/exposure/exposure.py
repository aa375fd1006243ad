"""Which tools of the catalog are offered to a model, and how. It may call any of them by name in each of these ways.

- direct: every tool with its schema, in every request.
- gateway: one tool in place of all, see `gateway`.
- search: a tool to search with; tools that were found are offered from the next request on, see `search`.
- auto: direct, while all schemas fit the budget and the number of tools that providers accept; otherwise search.
"""

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain

import msgspec

from dialog_engine.context import tokens_of_tool
from dialog_engine.model import AssistantMessage, Message, ToolMessage
from dialog_engine.tool_calls.arguments import unusable_schema
from dialog_engine.tool_calls.exposure import gateway, search
from dialog_engine.tool_calls.exposure.allowed import ToolFilters
from dialog_engine.tool_calls.exposure.quarantine import Quarantine
from dialog_engine.tool_calls.ports import RefusedTool, ServerView, ToolDirectory
from plugins_contract.catalog import Quarantined, ToolEntry
from plugins_contract.choice import ToolChoice
from plugins_contract.outcomes import ToolError

MAX_TOOLS = 120
"""The most tools of the catalog that are offered at once, unless `direct` is set. OpenAI accepts 128 in a request
("Expected an array with maximum length 128"), and the engine's own tools are among them."""


INSTRUCTIONS_TOKENS = 2_000
MOST_CATALOGS = 16
"""For how many catalogs it is remembered how they are offered: senders with different rights have different ones."""


class ExposureMode(StrEnum):
    """The values of TOOL_EXPOSURE."""

    DIRECT = "direct"
    GATEWAY = "gateway"
    SEARCH = "search"
    AUTO = "auto"


@dataclass(frozen=True, slots=True)
class OfferRule:
    """How one catalog is offered; `mode` is never `auto`. `tokens` is the cost of all its schemas in every request."""

    mode: ExposureMode
    tokens: int
    offered: tuple[ToolEntry, ...]
    """The tools that are always offered: the whole catalog, or the one tool in its place."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the tools of the catalog may cost in a request, and how many they may be."""

    tokens: int
    tools: int = MAX_TOOLS

    def holds(self, tokens: int, tools: int) -> bool:
        """Whether so many fit."""
        return tokens <= self.tokens and tools <= self.tools


class Exposure:
    """Decides what is offered. `budget_tokens` bounds what the offered tools of the catalog cost in each request, and
    `instructions_tokens` what their servers say about them."""

    def __init__(
        self,
        mode: ExposureMode = ExposureMode.AUTO,
        budget_tokens: int = 12_000,
        instructions_tokens: int = INSTRUCTIONS_TOKENS,
    ) -> None:
        self.mode = mode
        self.budget_tokens = budget_tokens
        self.instructions_tokens = instructions_tokens
        self._recent: list[tuple[tuple[ToolEntry, ...], OfferRule]] = []
        self._preparing = asyncio.Lock()

    async def prepare(self, catalog: tuple[ToolEntry, ...]) -> None:
        """Decide how this catalog is offered, in a thread: with hundreds of tools it takes 10 ms and more."""
        async with self._preparing:
            if self._known(catalog) is None:
                self._keep(catalog, await asyncio.to_thread(self._decide, catalog))

    def in_force(self, catalog: tuple[ToolEntry, ...]) -> OfferRule:
        """How this catalog is offered. Answers are kept, because catalogs seldom change: one for each set of rights."""
        return self._known(catalog) or self._keep(catalog, self._decide(catalog))

    def offered(
        self,
        catalog: tuple[ToolEntry, ...],
        messages: Sequence[Message],
        own: Sequence[ToolEntry] = (),
        reader: ToolEntry | None = None,
        of_client: Sequence[ToolEntry] = (),
    ) -> tuple[ToolEntry, ...]:
        """The tools that are offered after these messages.

        `own` are the engine's tools that are always offered; `reader` is offered from the first shortened result on.
        So are those `of_client`, which leave that much less room to the tools of the catalog.
        Tools that are added later come last, so that the beginning of the list stays the same and the provider's
        prompt cache holds.
        """
        room = Room(self.budget_tokens - sum(map(tokens_of_tool, of_client)), MAX_TOOLS - len(of_client))
        rule = self._within(room, self.in_force(catalog), catalog)
        later = found(catalog, messages, room) if rule.mode is ExposureMode.SEARCH else []
        cut = next((n for n, m in enumerate(messages, 1) if isinstance(m, ToolMessage) and m.cut), 0)
        if reader and cut:
            before = set(chain.from_iterable(map(_mentioned, messages[:cut])))
            later.insert(sum(tool.name in before for tool in later), reader)
        return (*rule.offered, *own, *of_client, *later)

    def _within(self, room: "Room", rule: OfferRule, catalog: tuple[ToolEntry, ...]) -> OfferRule:
        """The rule, where tools of a client leave this room."""
        fits = room.holds(rule.tokens, len(catalog))
        if self.mode is not ExposureMode.AUTO or rule.mode is ExposureMode.SEARCH or fits or not catalog:
            return rule
        return OfferRule(ExposureMode.SEARCH, rule.tokens, self._standing(ExposureMode.SEARCH, catalog))

    def _known(self, catalog: tuple[ToolEntry, ...]) -> OfferRule | None:
        for place, (known, rule) in enumerate(self._recent):
            if known == catalog:
                self._recent[place] = catalog, rule  # so that equal content in new objects is compared once
                return rule
        return None

    def _keep(self, catalog: tuple[ToolEntry, ...], rule: OfferRule) -> OfferRule:
        self._recent = [*self._recent[1 - MOST_CATALOGS :], (catalog, rule)]
        return rule

    def _decide(self, catalog: tuple[ToolEntry, ...]) -> OfferRule:
        tokens = sum(map(tokens_of_tool, catalog))
        mode = self.mode
        if mode is ExposureMode.AUTO:
            few = Room(self.budget_tokens).holds(tokens, len(catalog))
            mode = ExposureMode.DIRECT if few else ExposureMode.SEARCH
        return OfferRule(mode, tokens, self._standing(mode, catalog) if catalog else ())

    def _standing(self, mode: ExposureMode, catalog: tuple[ToolEntry, ...]) -> tuple[ToolEntry, ...]:
        match mode:
            case ExposureMode.GATEWAY:
                return (gateway.entry(catalog, self.budget_tokens),)
            case ExposureMode.SEARCH:
                return (search.entry(catalog),)
            case ExposureMode.DIRECT | ExposureMode.AUTO:
                return catalog


def found(catalog: Sequence[ToolEntry], messages: Sequence[Message], room: "Room") -> list[ToolEntry]:
    """The tools that were found or called in these messages, in the order of their first mention.

    When they exceed the room, those whose last mention is oldest are left out, and of one search the
    worst matches. The best match of the last search is always kept.
    """
    by_name = {tool.name: tool for tool in catalog}
    mentioned = [[name for name in _mentioned(message) if name in by_name] for message in messages]
    kept: set[str] = set()
    tokens = 0
    for name in dict.fromkeys(chain.from_iterable(reversed(mentioned))):
        tokens += tokens_of_tool(by_name[name])
        if kept and not room.holds(tokens, len(kept) + 1):
            break
        kept.add(name)
    return [by_name[name] for name in dict.fromkeys(chain.from_iterable(mentioned)) if name in kept]


def _mentioned(message: Message) -> Iterator[str]:
    match message:
        case AssistantMessage(tool_calls=calls):
            yield from (call.tool_name for call in calls)
        case ToolMessage(name=search.NAME, content=content):
            yield from search.names_in(content)
        case _:
            pass


class OfferedTools(ToolDirectory):
    """The tools of another directory, without those in quarantine, which its servers list with the reasons.

    Also in quarantine is a tool whose schema could not be applied to a call, such as one that takes too long.

    Each message sees what `filters` allow.
    """

    def __init__(self, directory: ToolDirectory, quarantine: Quarantine, filters: ToolFilters | None = None) -> None:
        self._directory = directory
        self._quarantine = quarantine
        self._filters = filters or ToolFilters()
        self._has_rights = filters is not None

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return tuple(map(self._seen, self._directory.servers))

    @property
    def workers(self) -> int:
        return self._directory.workers

    def tools(self) -> tuple[ToolEntry, ...]:
        tools = self._directory.tools()
        if not any(self._quarantine.refused.values()) and not any(map(unusable_schema, tools)):
            return tools
        return tuple(tool for tool in tools if self._offered(tool))

    def find(self, name: str) -> ToolEntry | ToolError:
        return self._directory.find(name)

    def has_resources(self) -> bool:
        return self._directory.has_resources()

    def instructions(self) -> Mapping[str, str]:
        return self._directory.instructions()

    def visible_to(self, subject: str, roles: Sequence[str], choice: ToolChoice | None = None) -> ToolDirectory:
        if choice is None and not self._has_rights:
            return self
        return self._filters.restricted(self, subject, roles, choice)

    def _seen(self, view: ServerView) -> ServerView:
        tools = view.catalog.tools
        refused = tuple(
            RefusedTool(tool.tool, model, reason)
            for tool in tools
            for model, reason in self._quarantine.reasons(tool).items()
        )
        unusable = tuple(
            Quarantined(tool=tool.tool, reason=reason) for tool in tools if (reason := unusable_schema(tool))
        )
        if not refused and not unusable:
            return view
        kept = tuple(tool for tool in tools if self._offered(tool))
        quarantined = (*view.catalog.quarantined, *unusable)
        catalog = msgspec.structs.replace(view.catalog, tools=kept, quarantined=quarantined)
        return replace(view, catalog=catalog, refused=refused)

    def _offered(self, tool: ToolEntry) -> bool:
        return not self._quarantine.by_all(tool) and unusable_schema(tool) is None
