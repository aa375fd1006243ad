"""The Horizontal Pod Autoscaler, as far as the ScaledObject of deploy/k8s uses it.

KEDA gives it one metric per trigger with an average value as target. The algorithm is that of the Kubernetes
documentation: the wanted number is the largest of ceil(value / target); a change within 10 % of the present number is
none; the number falls no lower than the highest wish of the stabilization window; policies bound each change.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from tests.support.processes import ROOT

SCALED_OBJECT = ROOT / "deploy" / "k8s" / "components" / "autoscaling" / "scaled-object.yaml"
SYNC_SECONDS = 15
"""How often the autoscaler decides."""
TOLERANCE = 0.1


def scaled_object() -> dict[str, Any]:
    return next(
        each["spec"] for each in yaml.safe_load_all(SCALED_OBJECT.read_text()) if each["kind"] == "ScaledObject"
    )


def targets(spec: Mapping[str, Any]) -> dict[str, int]:
    """The target per worker of each trigger: of `length`, and of `pending`."""
    kinds = {"streamLength": "length", "pendingEntriesCount": "pending"}
    found = ((kinds.get(name), value) for each in spec["triggers"] for name, value in each["metadata"].items())
    return {kind: int(value) for kind, value in found if kind}


@dataclass
class Autoscaler:
    """Decides every `SYNC_SECONDS`; `workers` is the number that it asks for."""

    spec: Mapping[str, Any]
    workers: int = 0
    _at: int = 0
    _wished: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    _was: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    def __post_init__(self) -> None:
        self.workers = self.spec["minReplicaCount"]

    def decide(self, values: Mapping[str, int]) -> int:
        self._at += SYNC_SECONDS
        wish = max(self._wish(values[kind], target) for kind, target in targets(self.spec).items())
        wish = min(max(wish, self.spec["minReplicaCount"]), self.spec["maxReplicaCount"])
        behavior = self.spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
        window = behavior["scaleDown"]["stabilizationWindowSeconds"]
        self._wished = [(at, each) for at, each in self._wished if at > self._at - window] + [(self._at, wish)]
        if wish < self.workers:
            wish = min(self.workers, max(each for _, each in self._wished))
            wish = max(wish, self._bound(behavior["scaleDown"]["policies"], -1))
        elif wish > self.workers:
            wish = min(wish, self._bound(behavior["scaleUp"]["policies"], 1))
        self._was.append((self._at, self.workers))
        self.workers = wish
        return wish

    def _wish(self, value: int, target: int) -> int:
        near = self.workers and abs(value / (target * self.workers) - 1) <= TOLERANCE
        return self.workers if near else math.ceil(value / target)

    def _bound(self, policies: list[dict[str, Any]], sign: int) -> int:
        """How far the number may go: of several policies the one that allows most counts."""
        bounds: list[int] = []
        for policy in policies:
            begin = next((each for at, each in self._was if at > self._at - policy["periodSeconds"]), self.workers)
            step = policy["value"] if policy["type"] == "Pods" else begin * policy["value"] / 100
            bounds.append(math.ceil(begin + step) if sign > 0 else math.floor(begin - step))
        return max(bounds) if sign > 0 else min(bounds)
