"""The clock of Redis is set forward and back by two minutes, while calls run.

Forward, every entry in the group looks idle for two minutes: no living worker may lose a call for that. A deadline is a
time on that clock, so a step forward brings it nearer by the step, and by no more.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plugins_contract.outcomes import CallState
from tests.chaos.load import Work
from tests.chaos.report import Report, Size, UnableHereError
from tests.chaos.trial import trial

STEP_SECONDS = 120
DEADLINE_MS = 2 * STEP_SECONDS * 1000
"""Twice the step: no call runs out of time."""


@dataclass(frozen=True, slots=True)
class Form:
    """How much is done in one size: offsets of the clock, in seconds, each for `pause_seconds`."""

    offsets: Sequence[int]
    pause_seconds: float
    work: Work


FORMS = {
    # Without the grace one step forward takes calls in four runs of five: a renewal may come before the look.
    Size.SHORT: Form((STEP_SECONDS, 0, -STEP_SECONDS, 0, STEP_SECONDS), 3.0,
        Work(calls_per_turn=5, open_calls=20, longest_ms=2_000)),
    Size.FULL: Form((STEP_SECONDS, 0, -STEP_SECONDS, 0) * 5, 20.0,
        Work(calls_per_turn=10, open_calls=60, longest_ms=15_000)),
}  # fmt: skip


def run(size: Size, folder: Path, *, source: str = "") -> Report:
    form = FORMS[size]
    clock = FakeClock(folder / "clock")
    options: dict[str, Any] = {"quick": size is Size.SHORT, "source": source, "redis_env": clock.environment}
    engine_env = {"MCP_REQUEST_TIMEOUT_MS": str(DEADLINE_MS)}
    with trial(folder, form.work, workers=2, engine_env=engine_env, **options) as under_fire:
        running: list[int] = []
        under_fire.load.wait(form.pause_seconds)
        for offset in form.offsets:
            running.append(under_fire.wait_for_running_calls())
            clock.set(offset)
            under_fire.load.wait(form.pause_seconds)
        history = under_fire.judge()
        for call in history.calls.values():
            what = f"a call is {call.outcome} though only a clock was set"
            under_fire.expect(call.outcome == CallState.SUCCEEDED, "clock", what, call.correlation_id)
        under_fire.figures |= {
            "steps": len(form.offsets),
            "seconds of each step": STEP_SECONDS,
            "calls that ran then, at least": min(running),
            "calls taken from living workers": len(under_fire.observer.observations.handovers),
        }
        return under_fire.report("clock_stepped")


class FakeClock:
    """A clock for one process, so many seconds beside the right time.

    Raises:
        UnableHereError: libfaketime is not installed.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self.set(0)
        self.environment = {
            "LD_PRELOAD": str(_library()),
            "FAKETIME_TIMESTAMP_FILE": str(file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }

    def set(self, offset: int) -> None:
        """Set it; the process sees it with its next look at the clock."""
        new = self._file.with_suffix(".new")
        new.write_text(f"{offset:+d}")
        new.replace(self._file)


def _library() -> Path:
    if shutil.which("faketime"):
        for folder in (Path("/usr/lib"), Path("/usr/local/lib")):
            for library in folder.rglob("libfaketimeMT.so.1"):
                return library
    raise UnableHereError("needs libfaketime (the package `faketime`)")
