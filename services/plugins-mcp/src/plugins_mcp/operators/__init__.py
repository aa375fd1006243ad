"""Commands for operators: `plugins-mcp dead`."""
