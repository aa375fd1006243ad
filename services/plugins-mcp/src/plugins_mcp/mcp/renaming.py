"""The names and descriptions that operators give tools in the place of the server's own. Pure."""

from collections import Counter

import msgspec

from plugins_contract.catalog import Quarantined, ServerCatalog, ToolEntry, exposed_name
from plugins_mcp.mcp.spec import ServerSpec

TAKEN = "its name in the configuration is that of another tool of this server"


def renamed(spec: ServerSpec, catalog: ServerCatalog) -> ServerCatalog:
    """The catalog as models see it. A tool whose new name another one has is left out: calls of either would be
    ambiguous, and the server must not choose which is meant."""
    if not any(each.name or each.description for each in spec.options.tools.values()):
        return catalog
    tools = [_renamed(spec, tool) for tool in catalog.tools]
    times = Counter(tool.name for tool in tools)
    taken = {tool.tool for tool in tools if times[tool.name] > 1 and tool.alias}
    quarantined = (Quarantined(tool=tool, reason=TAKEN) for tool in sorted(taken))
    return msgspec.structs.replace(
        catalog,
        tools=tuple(sorted((tool for tool in tools if tool.tool not in taken), key=lambda tool: tool.name)),
        quarantined=(*catalog.quarantined, *quarantined),
    )


def _renamed(spec: ServerSpec, tool: ToolEntry) -> ToolEntry:
    options = spec.options.tool(tool.tool)
    alias = options.name or ""
    return msgspec.structs.replace(
        tool,
        name=exposed_name(spec.name, alias) if alias else tool.name,
        alias=alias,
        description=options.description or tool.description,
    )
