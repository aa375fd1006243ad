"""A tool inside the worker, to measure the path of a call without an MCP server.

For development only, with DEVELOPMENT_ECHO.
"""

from collections.abc import Callable
from typing import Any

from mcp.types import CallToolResult, TextContent

from plugins_contract.catalog import ServerCatalog, ServerState, ToolEntry, exposed_name
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallProgress
from plugins_mcp.mcp.calls import Answered, CallResult, Rejected, SendState
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.transport_options import Stdio

NAME, TOOL = "development_echo", "echo"

_ENTRY = ToolEntry(
    name=exposed_name(NAME, TOOL),
    server=NAME,
    tool=TOOL,
    description="Returns the text.",
    input_schema={"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]},
    execution_class=ExecutionClass.REPEATABLE,
)


class EchoServer(McpServer):
    """Stands in the place of a server. It is always ready, connects to nothing and returns the argument `text`."""

    def __init__(self) -> None:
        super().__init__(ServerSpec(NAME, Stdio("none")))
        self.catalog = self.listed = ServerCatalog(server=NAME, title="Development echo", tools=(_ENTRY,))
        self.attempted.set()

    @property
    def state(self) -> ServerState:
        return ServerState.READY

    async def run(self) -> None:
        await self._stopping.wait()

    async def call(
        self,
        tool: str,
        arguments: dict[str, Any],
        *,
        subject: str = "",
        approved: bool = False,
        timeout_s: float,
        granted_s: float | None = None,
        on_begin: Callable[[], None] = lambda: None,
        on_progress: Callable[[CallProgress], None] = lambda progress: None,
        meta: dict[str, Any] | None = None,
        send_state: SendState | None = None,
    ) -> CallResult:
        on_begin()
        text = arguments.get("text")
        if tool != TOOL or not isinstance(text, str):
            return Rejected(ErrorCode.TOOL_NOT_FOUND, f"{NAME} has only the tool {TOOL!r}, with one text")
        return Answered(CallToolResult(content=[TextContent(type="text", text=text)]))
