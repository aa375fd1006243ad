"""The MCP servers of the scenarios and their tools. See `tool_server`."""

from typing import Any

SERVER, BEFORE, NARROW, ASKING, RARE = "effects", "before", "narrow", "asking", "rare"
"""The usual one; in the era of the protocol before; with room for one call; with a person who must approve; and one
that not every worker has."""
ONCE, REPEATABLE = "once", "repeatable"
OBEYS, IGNORES = "obeys", "ignores"


def mcp_config(*names: str) -> dict[str, Any]:
    """The content of `mcp.json` for these servers; all others are not offered."""
    options: dict[str, dict[str, Any]] = {NARROW: {"concurrency": 1}, ASKING: {"approval": "always"}}
    return {
        "mcpServers": {
            name: {
                "type": "http",
                "url": "${LEGACY_MCP_URL}" if name == BEFORE else "${DEMO_MCP_URL}",
                "callstream": options.get(name, {"concurrency": 64}) | ({} if name == ASKING else {"trust": True}),
            }
            for name in names
        }
    }
