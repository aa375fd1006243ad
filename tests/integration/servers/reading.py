"""A real MCP server over stdio with resources and prompts; the number of its resources is its argument."""

import sys

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.resources import TextResource
from mcp.types import (
    Completion,
    CompletionArgument,
    CompletionContext,
    PromptReference,
    ResourceLink,
    ResourceTemplateReference,
)

server = MCPServer("notes", version="1")


@server.resource("notes://a/one", title="One", mime_type="text/plain")
def one() -> str:
    return "ONE"


@server.resource("notes://secret/key")
def secret() -> str:
    return "the key"


@server.resource("notes://picture", mime_type="image/png")
def picture() -> bytes:
    return b"\x89PNG"


@server.resource("notes://large")
def large() -> str:
    return "x" * 2_000_000


@server.resource("notes://huge")
def huge() -> str:
    return "x" * 40_000_000


@server.resource("notes://enormous")
def enormous() -> str:
    return "x" * 100_000_000


@server.resource("notes://people/{name}")
def person(name: str) -> str:
    return f"about {name}"


@server.tool(structured_output=False)
def links(uris: list[str]) -> list[ResourceLink]:
    """Name resources."""
    return [ResourceLink(type="resource_link", name="link", uri=uri) for uri in uris]


@server.prompt(title="Sum up", description="Sums up.")
def summary(text: str) -> str:
    return f"Sum up: {text}"


@server.completion()
async def complete(
    ref: PromptReference | ResourceTemplateReference, argument: CompletionArgument, context: CompletionContext | None
) -> Completion:
    return Completion(values=[each for each in ("ada", "adam", "bob") if each.startswith(argument.value)], total=3)


for number in range(int(sys.argv[1])):
    server.add_resource(TextResource(uri=f"notes://many/{number}", name=f"many {number}", text="x"))

if __name__ == "__main__":
    server.run("stdio")
