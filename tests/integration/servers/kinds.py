"""A real MCP server whose one tool returns every kind of content. Speaks over stdio."""

from typing import Any

from mcp.server.mcpserver import MCPServer
from mcp.types import CallToolResult, ToolAnnotations

LOG = "".join(f"entry {number}: {'needle' if number == 12_000 else 'hay'}\n" for number in range(20_000))
"""A long text."""
FOR_USER = {"annotations": {"audience": ["user"]}}
RESULTS: dict[str, dict[str, Any]] = {
    "text": {"content": [{"type": "text", "text": "grün 🌳"}]},
    "texts": {"content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
    "structured": {"content": [], "structuredContent": {"städte": ["Köln"]}},
    "structured and as text": {
        "content": [{"type": "text", "text": '{\n  "a": 1\n}'}],
        "structuredContent": {"a": 1},
    },
    "structured and more": {"content": [{"type": "text", "text": "One row."}], "structuredContent": {"a": 1}},
    "image": {"content": [{"type": "image", "mimeType": "image/png", "data": "QUJD"}]},
    "audio": {"content": [{"type": "audio", "mimeType": "audio/wav", "data": "QUJD"}]},
    "file of text": {
        "content": [{"type": "resource", "resource": {"uri": "f://a.css", "mimeType": "text/css", "text": "b {}"}}]
    },
    "file": {
        "content": [{"type": "resource", "resource": {"uri": "f://a", "mimeType": "application/pdf", "blob": "QUJD"}}]
    },
    "link": {
        "content": [
            {"type": "resource_link", "uri": "f://a", "name": "a", "title": "A", "mimeType": "text/css", "size": 7}
        ]
    },
    "for the user": {
        "content": [
            {"type": "text", "text": "for both"},
            {"type": "text", "text": "for the user", **FOR_USER},
            {"type": "image", "mimeType": "image/png", "data": "QUJD", **FOR_USER},
        ]
    },
    "nothing": {"content": []},
    "empty text": {"content": [{"type": "text", "text": ""}]},
    "failure": {"content": [{"type": "text", "text": "no such table"}], "isError": True},
    "failure with a picture": {
        "content": [{"type": "image", "mimeType": "image/png", "data": "QUJD"}],
        "isError": True,
    },
    "long": {"content": [{"type": "text", "text": LOG}]},
}

server = MCPServer("kinds", version="1")


@server.tool(annotations=ToolAnnotations(read_only_hint=True), structured_output=False)
def give(kind: str) -> CallToolResult:
    """Return content of this kind."""
    return CallToolResult.model_validate(RESULTS[kind])


if __name__ == "__main__":
    server.run("stdio")
