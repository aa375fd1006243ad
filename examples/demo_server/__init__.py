"""A demo MCP server: harmless tools of every kind, with effects that tests can count."""
