"""What workers answered, from the ledger: for a day after the end of a call."""

import logging

import msgspec

from dialog_engine.tool_calls.results import Answers
from plugins_contract.connections import is_outage
from plugins_contract.ledger import EngineLedger, decode_reply
from plugins_contract.outcomes import CallFinished, ToolOutcome

log = logging.getLogger(__name__)


class LedgerAnswers(Answers):
    """Reads terminal replies that are still in Redis."""

    def __init__(self, ledger: EngineLedger) -> None:
        self._ledger = ledger

    async def outcome(self, correlation_id: str) -> ToolOutcome | None:
        try:
            found = await self._ledger.audit([correlation_id])
        except Exception as error:
            if is_outage(error):
                log.warning("the result of call %s cannot be looked up: %s", correlation_id, error)
                return None
            raise
        for _, reply in found:
            if isinstance(reply, bytes):
                try:
                    decoded = decode_reply(reply)
                except msgspec.DecodeError:
                    log.exception("the result of call %s cannot be read", correlation_id)
                    return None
                return decoded.outcome if isinstance(decoded, CallFinished) else None
        return None
