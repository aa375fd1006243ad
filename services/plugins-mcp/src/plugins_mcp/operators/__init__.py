"""Commands for operators: `plugins-mcp dead` and `plugins-mcp trace`."""
