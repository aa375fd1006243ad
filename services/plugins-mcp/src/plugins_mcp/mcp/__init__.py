"""MCP servers as this worker uses them: configured, connected, listed and called.

Knows nothing of Redis, leases or the ledger. What lies above needs only the names exported here.
"""

from plugins_mcp.mcp.calls import Ambiguous, Answered, CallResult, NotSent, Rejected, RetryLater, TimedOut
from plugins_mcp.mcp.content import to_outcome
from plugins_mcp.mcp.flight import Flight
from plugins_mcp.mcp.http_client import TALKATIVE_LOGGERS
from plugins_mcp.mcp.pace import Pace
from plugins_mcp.mcp.pool import McpServers, ServerHealth
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.servers_file import ServersFile, read_servers_file, single_server
from plugins_mcp.mcp.spec import BrokenServer, Http, ServerOptions, ServerSpec, Sse, Stdio, ToolOptions

__all__ = [
    "TALKATIVE_LOGGERS",
    "Ambiguous",
    "Answered",
    "BrokenServer",
    "CallResult",
    "Flight",
    "Http",
    "McpServer",
    "McpServers",
    "NotSent",
    "Pace",
    "Rejected",
    "RetryLater",
    "ServerHealth",
    "ServerOptions",
    "ServerSpec",
    "ServersFile",
    "Sse",
    "Stdio",
    "TimedOut",
    "ToolOptions",
    "read_servers_file",
    "single_server",
    "to_outcome",
]
