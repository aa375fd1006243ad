"""A real MCP server with tools that leave traces and misbehave.

It speaks over stdio. Traces go to the file named by `TRACE`.
"""

import os
from pathlib import Path

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import ToolAnnotations
from pydantic import BaseModel

server = MCPServer("demo", version="7", instructions="Be brief.")


def trace(line: str) -> None:
    with Path(os.environ["TRACE"]).open("a") as file:
        file.write(line + "\n")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def act_and_fail(name: str) -> str:
    """Take effect, then fail."""
    trace(f"{name} took effect")
    raise RuntimeError("after the effect")


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


class Answer(BaseModel):
    yes: bool


@server.tool()
async def ask(ctx: Context) -> str:
    """Ask the user something."""
    answer = await ctx.elicit("Sure?", Answer)
    return str(answer)


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
