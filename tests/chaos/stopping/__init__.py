"""What the scenario `stops` is played on: a model, an MCP server, their notes, and users who press Stop."""
