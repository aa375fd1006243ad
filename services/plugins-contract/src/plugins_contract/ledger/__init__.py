"""The ledger of tool calls: Lua scripts (`*.lua`), their answers (`replies`) and typed callers (`engine`, `worker`).

Each step is one script, atomic on the server and on its clock. It may be sent again when its reply was lost: ENQUEUE
is idempotent by the correlation id, START by the delivery token, COMPLETE by the terminal state.

States: `published → started → succeeded | failed | unknown | expired | cancelled | dead`; terminal states are final.
Each delivery that starts or ends a call raises its fence; only the current fence may write.
"""

from plugins_contract.ledger.engine import AUDIT_BATCH, AUDIT_BYTES, SILENT_MS, EngineLedger
from plugins_contract.ledger.scripts import decode_reply, encode_reply
from plugins_contract.ledger.worker import LEASE_MS, Delivery, WorkerLedger, renew_each

__all__ = [
    "AUDIT_BATCH",
    "AUDIT_BYTES",
    "LEASE_MS",
    "SILENT_MS",
    "Delivery",
    "EngineLedger",
    "WorkerLedger",
    "decode_reply",
    "encode_reply",
    "renew_each",
]
