"""A real MCP server with tools that take time, leave traces and die.

Run as `demo.py stdio`, `demo.py streamable-http PORT` or `demo.py sse PORT`. Traces go to the file named by `TRACE`.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

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
async def wait(name: str, seconds: float = 60.0) -> str:
    """Wait, and trace the beginning and the end."""
    trace(f"{name} began")
    try:
        await asyncio.sleep(seconds)
    except BaseException:
        trace(f"{name} cancelled")
        raise
    trace(f"{name} ended")
    return name


@server.tool()
async def count(ctx: Context, to: int, every: float = 0.0) -> str:
    """Report progress up to a number."""
    try:
        for step in range(1, to + 1):
            await asyncio.sleep(every)
            await ctx.report_progress(step, to, f"step {step}")
    except BaseException:
        trace("count cancelled")
        raise
    return "counted"


@server.tool()
def act_and_fail(name: str) -> str:
    """Take effect, then fail."""
    trace(f"{name} took effect")
    raise RuntimeError("after the effect")


@server.tool()
def act_and_die(name: str) -> str:
    """Take effect, then kill the server before it can answer."""
    trace(f"{name} took effect")
    os._exit(1)


@server.tool()
def show_environment() -> dict[str, Any]:
    """The environment and the working directory of this server."""
    return {"env": dict(os.environ), "cwd": str(Path.cwd()), "pid": os.getpid()}


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
    match sys.argv[1:]:
        case ["stdio"]:
            server.run("stdio")
        case ["streamable-http", port]:
            server.run("streamable-http", port=int(port))
        case ["sse", port]:
            server.run("sse", port=int(port))
        case _:
            sys.exit(__doc__)
