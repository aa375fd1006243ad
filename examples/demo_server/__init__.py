"""A demo MCP server: harmless tools of every kind a client meets, with effects that can be counted from outside."""
