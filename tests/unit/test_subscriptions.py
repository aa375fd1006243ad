"""Which messages reach the task that waits for a tool call."""

import pytest

from dialog_engine.calls.subscriptions import CallMessage, Subscriptions
from dialog_engine.model import CallQueued, CallRunning
from plugins_contract.ledger.replies import Queued
from plugins_contract.outcomes import CallStarted


@pytest.mark.parametrize("fast_worker", [False, True])
async def test_a_call_that_runs_is_not_shown_as_queued_afterwards(*, fast_worker: bool) -> None:
    subscriptions, seen = Subscriptions(), list[CallMessage]()
    steps = [lambda: subscriptions.enqueued("c", Queued("1-0", 3)), lambda: subscriptions.replied("c", CallStarted(1))]
    with subscriptions.subscribed(["c"], seen.append):
        for step in reversed(steps) if fast_worker else steps:
            step()
    assert seen == ([CallRunning("c", 1)] if fast_worker else [CallQueued("c", 3), CallRunning("c", 1)])
