"""MCP servers as this worker uses them: configuration, connections, listings and calls.

Knows nothing of Redis, leases or the ledger. The rest of the worker needs only the names exported here.
"""

from plugins_mcp.mcp.calls import (
    Ambiguous,
    Answered,
    CallResult,
    InputAsked,
    NotSent,
    Rejected,
    RetryLater,
    SendState,
    TimedOut,
)
from plugins_mcp.mcp.circuit_breaker import ConnectionPolicy
from plugins_mcp.mcp.content import size_of, to_outcome
from plugins_mcp.mcp.dialogue import Dialogue
from plugins_mcp.mcp.echo import NAME as ECHO
from plugins_mcp.mcp.echo import EchoServer
from plugins_mcp.mcp.listing import without_trust
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.servers import McpServers, ServerHealth
from plugins_mcp.mcp.servers_file import ServersFile, read_servers_file, single_server
from plugins_mcp.mcp.session import NOISY_LOGGERS
from plugins_mcp.mcp.spec import BrokenServer, ServerOptions, ServerSpec, ToolOptions
from plugins_mcp.mcp.transport_options import Http, Sse, Stdio
from plugins_mcp.mcp.watched import Updates, Whose

__all__ = [
    "ECHO",
    "NOISY_LOGGERS",
    "Ambiguous",
    "Answered",
    "BrokenServer",
    "CallResult",
    "ConnectionPolicy",
    "Dialogue",
    "EchoServer",
    "Http",
    "InputAsked",
    "McpServer",
    "McpServers",
    "NotSent",
    "Rejected",
    "RetryLater",
    "SendState",
    "ServerHealth",
    "ServerOptions",
    "ServerSpec",
    "ServersFile",
    "Sse",
    "Stdio",
    "TimedOut",
    "ToolOptions",
    "Updates",
    "Whose",
    "read_servers_file",
    "single_server",
    "size_of",
    "to_outcome",
    "without_trust",
]
