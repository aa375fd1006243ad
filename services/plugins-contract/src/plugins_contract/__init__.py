"""What `dialog-engine` and `plugins-mcp` agree on, and nothing else.

Names in Redis (`keys`), the messages on the wire (`messages`, `outcomes`), the tool catalog (`catalog`, `names`),
error codes (`errors`), the one clock (`clock`) and the ledger of a tool call (`ledger`).
"""
