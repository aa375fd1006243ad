"""How long sessions are kept after their last message. Older ones are erased as their subjects could erase them."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import translate
from typing import NamedTuple, Protocol

from callstream_runtime.outage_log import OutageLog
from dialog_engine.errors import StorageUnavailableError

log = logging.getLogger(__name__)

DAY_MS = 86_400_000
PASS_SECONDS = 3_600.0
PAGE = 1_000


class Idle(NamedTuple):
    """A session, and for how many milliseconds nothing was said in it. `stateless`: it began without a name."""

    session_id: str
    subject: str
    idle_ms: int
    stateless: int = 0


class Rule:
    """`days` for which the sessions of a class of subjects are kept; 0: without end. `pattern` may have `*`, `?` and
    `[...]`."""

    def __init__(self, pattern: str, days: float) -> None:
        self.pattern = pattern
        self.days = days
        self._matches = re.compile(translate(pattern)).match

    def is_for(self, subject: str) -> bool:
        """Whether the subject is of this class."""
        return bool(self._matches(subject))

    def is_over(self, session: Idle) -> bool:
        """Whether the session is no longer kept."""
        return bool(self.days) and session.idle_ms > self.kept_ms

    @property
    def kept_ms(self) -> int:
        """The same in milliseconds."""
        return round(self.days * DAY_MS)


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules, of which the first that is for a subject decides. The last one is for every subject. `stateless` is
    for the sessions that began without a name, of every subject."""

    rules: Sequence[Rule]
    stateless: Rule

    @classmethod
    def of(cls, rules: Sequence[tuple[str, int]], stateless_seconds: float = 86_400) -> "Retention":
        """Of patterns and days."""
        return cls([Rule(pattern, days) for pattern, days in rules], Rule("*", stateless_seconds * 1_000 / DAY_MS))

    def rule_of(self, subject: str) -> Rule:
        """The rule that decides."""
        return next(rule for rule in self.rules if rule.is_for(subject))

    def ended_by(self, session: Idle) -> Rule | None:
        """The rule by which a session is no longer kept; None while it is."""
        rules = [*([self.stateless] if session.stateless else []), self.rule_of(session.subject)]
        return next((rule for rule in rules if rule.is_over(session)), None)


class OldSessions(Protocol):
    """The sessions of all subjects. Every method raises StorageUnavailableError."""

    async def page(self, after: str, limit: int) -> Sequence[Idle]:
        """The next sessions in the order of their ids."""
        ...

    async def expire(self, session_ids: Sequence[str], idle_ms: int) -> int:
        """Erase those of these sessions in which nothing was said for so long and no turn runs. Returns how many."""
        ...

    async def expire_left(self, idle_ms: int) -> int:
        """Erase the branches that a client has left for so long: beginnings in its own words, which it has sent again
        differently since. Returns how many turns."""
        ...


async def run_retention(retention: Retention, sessions: OldSessions, note: Callable[[int, int], None]) -> None:
    """Erase what is no longer kept, at the start and then every hour, until cancelled. Any number of engines may do so.

    `note` is called after each pass, with how many sessions it erased, and how many it left because a turn ran.
    """
    outages = OutageLog(log, "the retention of sessions")
    while True:
        try:
            erased, left = await one_pass(retention, sessions)
            outages.worked()
            note(erased, left)
            if erased:
                log.info("the retention has erased %d sessions", erased)
        except StorageUnavailableError as error:
            outages.failed(error)
        await asyncio.sleep(PASS_SECONDS)


async def one_pass(retention: Retention, sessions: OldSessions) -> tuple[int, int]:
    """Erase what is no longer kept. Returns how many sessions were erased, and how many were to be and were not."""
    due, erased, last = 0, 0, ""
    while page := await sessions.page(last, PAGE):
        for rule in (retention.stateless, *retention.rules):
            over = [each.session_id for each in page if rule is retention.ended_by(each)]
            due += len(over)
            if over:
                erased += await sessions.expire(over, rule.kept_ms)
        last = page[-1].session_id
    if retention.stateless.days:
        await sessions.expire_left(retention.stateless.kept_ms)
    return erased, due - erased
