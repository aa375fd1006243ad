"""How long a call took that no worker ran."""

import time
import uuid

import msgspec

from plugins_contract.outcomes import ToolOutcome


def timed(outcome: ToolOutcome, correlation_id: str) -> ToolOutcome:
    """The outcome with the time from the model's call until now, in milliseconds, unless a worker measured a run.

    The id of a call has the time at which it was made, so that an engine that adopts the turn knows it too.
    """
    if outcome.duration_ms or outcome.attempts:
        return outcome
    made_at = uuid.UUID(correlation_id).int >> 80  # `new_id` of the contract
    return msgspec.structs.replace(outcome, duration_ms=max(0, time.time_ns() // 1_000_000 - made_at))
