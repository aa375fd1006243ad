"""The ledger of tool calls: Lua scripts (`*.lua`), their answers (`replies`) and typed callers (`engine`, `worker`,
`renewals`).

Each step is one script, atomic on the server and on its clock. It may be sent again when its reply was lost: ENQUEUE
is idempotent by the correlation id, START by the delivery token, COMPLETE by the terminal state.

States: `published → started → succeeded | failed | unknown | expired | cancelled | dead`; terminal states are final.
Each delivery that starts or ends a call raises its fence; only the current fence may write.
"""

from plugins_contract.ledger.engine import (
    AUDIT_BATCH,
    AUDIT_BYTES,
    NEVER_OFFERED,
    SILENT_MS,
    UNKNOWN_INCARNATION,
    EngineLedger,
    Offer,
)
from plugins_contract.ledger.renewals import (
    RECENT_SECONDS,
    RecentCompletions,
    complete_again,
    renew_each,
    report,
    server_of,
)
from plugins_contract.ledger.scripts import Delivery, decode_reply, encode_reply
from plugins_contract.ledger.worker import LEASE_MS, WorkerLedger

__all__ = [
    "AUDIT_BATCH",
    "AUDIT_BYTES",
    "LEASE_MS",
    "NEVER_OFFERED",
    "RECENT_SECONDS",
    "SILENT_MS",
    "UNKNOWN_INCARNATION",
    "Delivery",
    "EngineLedger",
    "Offer",
    "RecentCompletions",
    "WorkerLedger",
    "complete_again",
    "decode_reply",
    "encode_reply",
    "renew_each",
    "report",
    "server_of",
]
