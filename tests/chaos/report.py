"""What a scenario is, and what it found."""

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from tests.support.store import Kind


class Size(StrEnum):
    SHORT = "short"
    """Seconds: part of `make test-all`."""
    FULL = "full"
    """Minutes: the figures in docs/reliability.md, by `make chaos`."""


@dataclass(frozen=True)
class Report:
    """`figures` were measured in this run; `findings` say what did not hold, and must be none."""

    scenario: str
    figures: dict[str, float | int | str]
    findings: tuple[str, ...] = ()
    notes: tuple[str, ...] = field(default=())
    """What a reader of the figures should know, such as what could not be tried here."""

    @property
    def passed(self) -> bool:
        return not self.findings


class Scenario(Protocol):
    """A module of `tests.chaos.scenarios`: breaks something and tells what came of it.

    One that is run with several engines on PostgreSQL, or on either store, names them in `STORES`.
    """

    def run(self, size: Size, folder: Path, *, store: Kind = ...) -> Report:
        """Run in `folder`, which is empty and this scenario's own. `store` is passed to one that has `STORES`.

        One that finds guards missing takes `source` too: see `Cluster`.

        Raises:
            UnableHereError: this machine cannot do it.
        """
        ...


class UnableHereError(Exception):
    """This machine cannot run the scenario; the text says what is missing."""
