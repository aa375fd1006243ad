"""What `dialog-engine` and `plugins-mcp` agree on, and nothing else. It imports msgspec and redis only.

Names in Redis (`keys`), messages (`messages`, `outcomes`, `errors`), the tool catalog (`catalog`), the ledger of a tool
call (`ledger`), pools of workers (`pools`), dead letters (`dead_letters`), accepted tools (`pins`), who may use which
tools (`rights`), signatures (`signing`, `trust`) and the form of sealed values (`encryption`).
"""
