"""The tools that one message may use: those of its sender, and of these the ones that it has chosen. The others are
neither offered nor listed nor requested."""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from callstream_runtime.watched_file import WatchedFile
from dialog_engine.tool_calls.exposure.descriptions import suggestion
from dialog_engine.tool_calls.ports import ServerView, ToolDirectory
from plugins_contract.catalog import ServerCatalog, ToolEntry
from plugins_contract.choice import ToolChoice
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import ToolError
from plugins_contract.reads import PROMPT, RESOURCE
from plugins_contract.rights import Access, Rights

MOST_KEPT = 64
"""For how many different filters the list of tools is kept."""


@dataclass(frozen=True, slots=True)
class Filter:
    """What a message may use: everything, without a part. Equal for messages with the same rights and choice."""

    access: Access | None
    choice: ToolChoice | None

    def allows(self, server: str, tool: str) -> bool:
        """Whether it may use the tool."""
        if self.access and not self.access.allows(server, tool):
            return False
        return not self.choice or self.choice.allows(server, tool)

    def sees(self, server: str) -> bool:
        """Whether it may use any tool of the server, as far as that is known without its tools."""
        return not (self.access and not self.access.sees(server)) and (not self.choice or self.choice.sees(server))

    def refusal(self, name: str, tool: ToolEntry) -> str:
        """Why a tool that it does not allow is not run."""
        if self.access and not self.access.allows(tool.server, tool.tool):
            return f"the user may not use the tool {name[:100]!r}"
        return f"the tool {name[:100]!r} is not among those that the user chose for this message: do without it"


class ToolFilters:
    """Restricts directories of tools to what RIGHTS_FILE allows, if there is one, and a message has chosen."""

    def __init__(self, rights: WatchedFile[Rights] | None = None) -> None:
        self._rights = rights
        self._kept: OrderedDict[Filter, tuple[tuple[ToolEntry, ...], tuple[ToolEntry, ...]]] = OrderedDict()
        """By filter, a catalog and the allowed part of it: whoever compares catalogs gets the same one again."""
        self._parts: OrderedDict[tuple[Filter, str], tuple[ServerCatalog, ServerCatalog]] = OrderedDict()
        """By filter and server, likewise: a server may have ten thousand resources."""

    def restricted(
        self, directory: ToolDirectory, subject: str, roles: Sequence[str], choice: ToolChoice | None = None
    ) -> ToolDirectory:
        """The part of `directory` that this sender may use now, in a message with this choice."""
        access = self._rights.content.access(subject, roles) if self._rights else None
        return AllowedTools(directory, Filter(access, choice), self) if access or choice else directory

    def allowed(self, only: Filter, catalog: tuple[ToolEntry, ...]) -> tuple[ToolEntry, ...]:
        """The part of a catalog that `only` allows."""
        kept = self._kept.get(only)
        if kept is None or kept[0] != catalog:
            kept = catalog, tuple(tool for tool in catalog if only.allows(tool.server, tool.tool))
            self._kept[only] = kept
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(only)
        return kept[1]

    def part(self, only: Filter, catalog: ServerCatalog) -> ServerCatalog:
        """The part of the catalog of a server that `only` allows."""
        key = (only, catalog.server)
        kept = self._parts.get(key)
        if kept is None or kept[0] is not catalog:
            kept = self._parts[key] = catalog, _part(only, catalog)
            if len(self._parts) > MOST_KEPT:
                self._parts.popitem(last=False)
        self._parts.move_to_end(key)
        return kept[1]


def _part(only: Filter, catalog: ServerCatalog) -> ServerCatalog:
    def allows(name: str) -> bool:
        return only.allows(catalog.server, name)

    return msgspec.structs.replace(
        catalog,
        tools=tuple(tool for tool in catalog.tools if allows(tool.tool)),
        quarantined=tuple(each for each in catalog.quarantined if allows(each.tool)),
        resources=tuple(each for each in catalog.resources if allows(RESOURCE + each.uri)),
        prompts=tuple(each for each in catalog.prompts if allows(PROMPT + each.name)),
    )


class AllowedTools(ToolDirectory):
    """The tools of another directory that one message may use."""

    def __init__(self, directory: ToolDirectory, only: Filter, filters: ToolFilters) -> None:
        self._directory = directory
        self._only = only
        self._filters = filters

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return tuple(self._part(view) for view in self._directory.servers if self._only.sees(view.catalog.server))

    @property
    def workers(self) -> int:
        return self._directory.workers

    def tools(self) -> tuple[ToolEntry, ...]:
        return self._filters.allowed(self._only, self._directory.tools())

    def find(self, name: str) -> ToolEntry | ToolError:
        tool = self._directory.find(name)
        if isinstance(tool, ToolEntry):
            if self._only.allows(tool.server, tool.tool):
                return tool
            return ToolError(ErrorCode.PERMISSION_DENIED, self._only.refusal(name, tool))
        if tool.code is not ErrorCode.TOOL_NOT_FOUND:
            return tool
        # The directory's own message would name tools that the message may not use.
        there = suggestion(name, sorted(each.name for each in self.tools()), "Tools")
        return ToolError(ErrorCode.TOOL_NOT_FOUND, f"there is no tool {name[:100]!r}. {there}")

    def allows(self, server: str, name: str) -> bool:
        return self._only.allows(server, name)

    def has_resources(self) -> bool:
        return self._directory.has_resources() and any(view.catalog.resources for view in self.servers)

    def instructions(self) -> Mapping[str, str]:
        return self._directory.instructions()

    def _part(self, view: ServerView) -> ServerView:
        catalog = view.catalog
        refused = tuple(each for each in view.refused if self._only.allows(catalog.server, each.tool))
        return replace(view, catalog=self._filters.part(self._only, catalog), refused=refused)
