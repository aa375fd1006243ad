"""Counts and logs leases of engines, and turns that change their owner."""

import logging

from callstream_runtime.tracing import turn_ids
from dialog_engine.chat.ownership import OwnershipObserver
from dialog_engine.chat.ports import SeenEngine
from dialog_engine.model import Turn
from dialog_engine.observe.metrics import Metrics

log = logging.getLogger("dialog_engine.ownership")


class ObservedOwnership(OwnershipObserver):
    """The observer of one engine's leases."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def moved(self, turn: Turn, how: str) -> None:
        self._metrics.turns_moved.labels(how).inc()
        fields = {"epoch": turn.epoch, "how": how}
        log.warning("turn changed its owner", extra=turn_ids(turn) | fields)

    def renewed(self, seconds: float) -> None:
        self._metrics.lease_renewals.labels("ok").inc()
        self._metrics.lease_renewal_seconds.set(seconds)

    def not_renewed(self) -> None:
        self._metrics.lease_renewals.labels("failed").inc()

    def counted(self, engines: int) -> None:
        self._metrics.engines.set(engines)

    def adopted(self, engine: SeenEngine) -> None:
        lease = "released" if engine.released else "expired"
        self._metrics.engines_adopted.labels(lease).inc()
        log.warning("the turns of another engine were adopted", extra={"engineId": engine.engine_id, "lease": lease})
