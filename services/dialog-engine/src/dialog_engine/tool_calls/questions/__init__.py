"""Questions of MCP servers in the middle of a call: their answers, and the calls that wait for them."""
