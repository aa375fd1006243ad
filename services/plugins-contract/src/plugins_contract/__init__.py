"""What `dialog-engine` and `plugins-mcp` share: their contract in Redis, and how they reach it.

The contract: names in Redis (`keys`), messages on the wire (`messages`, `outcomes`, `errors`, `ids`), the tool catalog
(`catalog`), the clock (`clock`), the ledger of a tool call (`ledger`) and dead letters (`dead_letters`).
Reaching Redis: settings and addresses (`settings`), clients (`connections`) and background loops (`loops`).
"""
