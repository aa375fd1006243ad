"""Commands for operators: `plugins-mcp dead` and `plugins-mcp tools`."""
