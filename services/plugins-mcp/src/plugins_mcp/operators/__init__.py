"""Commands for operators: `plugins-mcp dead`, `tools`, `servers` and `check`."""
