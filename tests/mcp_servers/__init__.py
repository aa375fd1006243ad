"""Published MCP servers, each tried through the API of an engine; the table in docs/mcp.md is made from the results."""
