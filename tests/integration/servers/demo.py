"""A real MCP server over stdio, with tools that misbehave."""

import os

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("demo", version="7", instructions="Be brief.")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def shout(kilobytes: int) -> str:
    """Write to standard error, and something that is not MCP to standard output."""
    os.write(2, b"e" * 1024 * kilobytes)
    os.write(1, b"this is not JSON\n{}\n")
    return "shouted"


@server.tool()
async def grow(ctx: Context, name: str, announce: bool = True) -> str:
    """Offer one more tool, and say so in the words of both eras."""
    server.add_tool(lambda: name, name=name, description="new")
    if announce:
        await ctx.notify_tools_changed()
        await ctx.session.send_tool_list_changed()
    return "grown"


@server.resource("demo://greeting", description="A greeting")
def greeting() -> str:
    return "hello"


@server.resource("demo://people/{name}")
def person(name: str) -> str:
    return name


@server.prompt(description="Sum up")
def summary(text: str) -> str:
    return text


if __name__ == "__main__":
    server.run("stdio")
