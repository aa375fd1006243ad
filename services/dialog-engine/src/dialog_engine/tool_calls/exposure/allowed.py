"""The tools that one sender may use. The others are neither offered nor listed nor requested."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace

import msgspec

from callstream_runtime.watched_file import WatchedFile
from dialog_engine.tool_calls.exposure.descriptions import suggestion
from dialog_engine.tool_calls.ports import ServerView, ToolDirectory
from plugins_contract.catalog import ServerCatalog, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import ToolError
from plugins_contract.rights import Access, Rights

MOST_KEPT = 64
"""For how many different accesses the list of tools is kept."""


class ToolRights:
    """Restricts directories of tools to what RIGHTS_FILE allows."""

    def __init__(self, rights: WatchedFile[Rights]) -> None:
        self._rights = rights
        self._kept: OrderedDict[Access, tuple[tuple[ToolEntry, ...], tuple[ToolEntry, ...]]] = OrderedDict()
        """By access, a catalog and the allowed part of it: whoever compares catalogs gets the same one again."""

    def restricted(self, directory: ToolDirectory, subject: str, roles: Sequence[str]) -> "AllowedTools":
        """The part of `directory` that this sender may use now."""
        return AllowedTools(directory, self._rights.content.access(subject, roles), self)

    def allowed(self, access: Access, catalog: tuple[ToolEntry, ...]) -> tuple[ToolEntry, ...]:
        """The part of a catalog that `access` allows."""
        kept = self._kept.get(access)
        if kept is None or kept[0] != catalog:
            kept = catalog, tuple(tool for tool in catalog if access.allows(tool.server, tool.tool))
            self._kept[access] = kept
            if len(self._kept) > MOST_KEPT:
                self._kept.popitem(last=False)
        self._kept.move_to_end(access)
        return kept[1]


class AllowedTools(ToolDirectory):
    """The tools of another directory that one sender may use."""

    def __init__(self, directory: ToolDirectory, access: Access, rights: ToolRights) -> None:
        self._directory = directory
        self._access = access
        self._rights = rights

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return tuple(self._part(view) for view in self._directory.servers if self._access.sees(view.catalog.server))

    @property
    def workers(self) -> int:
        return self._directory.workers

    def tools(self) -> tuple[ToolEntry, ...]:
        return self._rights.allowed(self._access, self._directory.tools())

    def find(self, name: str) -> ToolEntry | ToolError:
        tool = self._directory.find(name)
        if isinstance(tool, ToolEntry):
            if self._access.allows(tool.server, tool.tool):
                return tool
            return ToolError(ErrorCode.PERMISSION_DENIED, f"the user may not use the tool {name[:100]!r}")
        if tool.code is not ErrorCode.TOOL_NOT_FOUND:
            return tool
        # The directory's own message would name tools that the sender may not use.
        there = suggestion(name, sorted(each.name for each in self.tools()), "Tools")
        return ToolError(ErrorCode.TOOL_NOT_FOUND, f"there is no tool {name[:100]!r}. {there}")

    def _part(self, view: ServerView) -> ServerView:
        catalog, allows = view.catalog, self._access.allows
        part: ServerCatalog = msgspec.structs.replace(
            catalog,
            tools=tuple(tool for tool in catalog.tools if allows(tool.server, tool.tool)),
            quarantined=tuple(each for each in catalog.quarantined if allows(catalog.server, each.tool)),
        )
        refused = tuple(each for each in view.refused if allows(catalog.server, each.tool))
        return replace(view, catalog=part, refused=refused)
