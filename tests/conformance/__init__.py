"""The official conformance suite of MCP clients, driven through the API of an engine."""
