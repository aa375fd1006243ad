"""The ledger of tool calls: Lua scripts (`*.lua`), what they answer (`replies`) and typed callers (`ledger`)."""

from plugins_contract.ledger.ledger import Delivery, EngineLedger, WorkerLedger, decode_reply, encode_reply, renew

__all__ = ["Delivery", "EngineLedger", "WorkerLedger", "decode_reply", "encode_reply", "renew"]
