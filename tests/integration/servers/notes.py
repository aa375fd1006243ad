"""A server that keeps state: what it is given, it knows until it ends. By stdio, or `--port` by HTTP with sessions."""

import asyncio
import os
import sys

from mcp.server.mcpserver import Context, MCPServer

server = MCPServer("notes", version="1")
notes: dict[object, list[str]] = {}


def mine(ctx: Context) -> list[str]:
    """Those of the session of the transport; a child process has one."""
    return notes.setdefault(ctx.headers.get("mcp-session-id") if ctx.headers else None, [])


@server.tool()
async def note(ctx: Context, text: str, seconds: float = 0) -> str:
    """Keep a text, and return all."""
    mine(ctx).append(text)
    await asyncio.sleep(seconds)
    return " ".join(mine(ctx))


@server.tool()
def where() -> str:
    """The process, and what its environment says of whom it is for."""
    return f"{os.getpid()} {os.environ.get('FILE', '')}"


@server.tool()
async def learn(ctx: Context) -> str:
    """Offer one more tool, in this process."""
    server.add_tool(lambda: "forgotten", name="forget", description="new")
    await ctx.notify_tools_changed()
    return "learnt"


@server.tool()
def die() -> str:
    """End the process."""
    os._exit(1)


if __name__ == "__main__":
    if "--port" in sys.argv:
        server.run("streamable-http", port=int(sys.argv[-1]))
    else:
        server.run("stdio")
