"""A real MCP server that asks people in the middle of its calls, as protocols before 2026-07-28 have it.

Arguments: `stdio`, or `sse` or `streamable-http` and a port. It notes in the file TRACE what it runs and what it was
answered. The client must ask for an earlier protocol: `"protocol": "legacy"`.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp.types import ElicitRequestURLParams

server = MCPServer("earlier", version="1")
DAY: dict[str, Any] = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 4, "default": 2},
    },
    "required": ["day"],
}
PASSWORD: dict[str, Any] = {"type": "object", "properties": {"password": {"type": "string"}}}
PLACE = "https://example.com/visit"
visited = set[str]()


def note(what: str) -> None:
    if path := os.environ.get("TRACE"):
        with Path(path).open("a") as trace:
            trace.write(what + "\n")


async def ask(ctx: Context, message: str, schema: dict[str, Any] = DAY) -> str:
    try:
        answer = await ctx.session.elicit_form(message, schema, ctx.request_id)
    except anyio.get_cancelled_exc_class():
        note("cancelled")
        raise
    note(answer.action)
    return f"{answer.action} {answer.content}"


@server.tool()
async def book(ctx: Context, city: str) -> str:
    """Ask once."""
    note(f"book {city}")
    return f"{await ask(ctx, f'When to {city}?')} {city}"


@server.tool()
async def many(ctx: Context, questions: int) -> str:
    """Ask again and again."""
    note("many")
    return " ".join([await ask(ctx, f"Question {number}") for number in range(questions)])


@server.tool()
async def secret(ctx: Context) -> str:
    """Ask what no form may ask."""
    return await ask(ctx, "Log in", PASSWORD)


@server.tool()
async def hasty(ctx: Context) -> str:
    """Ask, and wait for half a second only."""
    try:
        async with asyncio.timeout(0.5):
            return await ask(ctx, "Quick!")
    except TimeoutError:
        return "nobody was quick enough"


@server.tool()
async def open_page(ctx: Context) -> str:
    """Send the person somewhere."""
    return (await ctx.elicit_url("Look here", PLACE, "page")).action


@server.tool()
async def guarded(ctx: Context) -> str:
    """Works once an address was visited."""
    note("guarded")
    if "guard" not in visited:
        wanted = ElicitRequestURLParams(message="Sign in first", url=PLACE, elicitation_id="guard")
        raise UrlElicitationRequiredError([wanted])
    return "guarded result"


@server.tool()
async def visit(ctx: Context, say: bool = False) -> str:
    """As if the person had visited the address; with `say` the client learns of it."""
    visited.add("guard")
    if say:
        await ctx.session.send_elicit_complete("guard")
    return "visited"


@server.tool()
async def echo(text: str) -> str:
    """Ask nothing."""
    return text


@server.tool()
async def die() -> str:
    """Exit."""
    os._exit(3)


@server.tool()
async def declared(ctx: Context) -> str:
    """What the client says that it answers."""
    capabilities = ctx.session.client_capabilities
    return str(capabilities.elicitation if capabilities else None)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["sse" | "streamable-http" as transport, port]:
            server.run(transport, port=int(port))
        case _:
            server.run("stdio")
