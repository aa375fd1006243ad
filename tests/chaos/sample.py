"""One look at the open calls while they run: what the store and Redis have about them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugins_contract.keys import GROUP, Keys
from plugins_contract.messages import EVENT_TYPE
from plugins_contract.outcomes import CallState
from tests.support.store import Store

KEYS = Keys()
_OPEN = (
    "SELECT c.correlation_id, o.seq IS NOT NULL FROM tool_calls c"  # noqa: S608
    f" LEFT JOIN outbox o ON o.event_type = '{EVENT_TYPE}' AND o.event_id = c.correlation_id"
    " WHERE c.outcome IS NULL AND NOT EXISTS"
    " (SELECT 1 FROM approvals a WHERE a.correlation_id = c.correlation_id AND a.decision IS NULL)"
)
SCRIPT = (Path(__file__).parent / "sample.lua").read_text()


@dataclass(frozen=True, slots=True)
class Seen:
    """A call as Redis had it. `holder` is the consumer that had it, '' for none."""

    state: str
    execution_class: str
    deadline: int
    fence: int
    entry: str
    holder: str
    idle_ms: int
    on_stream: bool
    history: str = ""
    """What the ledger has noted about it, line by line."""

    @property
    def terminal(self) -> bool:
        return CallState(self.state).terminal


Sample = dict[str, Seen]
"""What Redis had about each open call at one instant, by correlation id."""


def open_calls(store: Store) -> dict[str, bool]:
    """The open calls that do not wait for approval, and whether each has its outbox row. Raises `AWAY`."""
    return {correlation_id: bool(has_row) for correlation_id, has_row in store.rows(_OPEN)}


def sample(redis: Any, ids: list[str]) -> Sample:
    """What Redis has about these calls; those that it does not know are left out. Raises what redis raises."""
    if not ids:
        return {}
    keys = [KEYS.requests, *map(KEYS.call, ids)]
    rows = redis.eval(SCRIPT, len(keys), *keys, GROUP)
    return {call: _seen(*row) for call, row in zip(ids, rows, strict=True) if row}


def _seen(
    state: str, cls: str, deadline: str, fence: str, entry: str, holder: str, idle_ms: int, there: int, history: str
) -> Seen:
    return Seen(state, cls, int(deadline or 0), int(fence), entry, holder, idle_ms, bool(there), history)
