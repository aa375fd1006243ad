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
    """A session, and for how many milliseconds nothing was said in it."""

    session_id: str
    subject: str
    idle_ms: int


class Rule:
    """`days` for which the sessions of a class of subjects are kept; 0: without end. `pattern` may have `*`, `?` and
    `[...]`."""

    def __init__(self, pattern: str, days: int) -> None:
        self.pattern = pattern
        self.days = days
        self._matches = re.compile(translate(pattern)).match

    def is_for(self, subject: str) -> bool:
        """Whether the subject is of this class."""
        return bool(self._matches(subject))

    def is_over(self, session: Idle) -> bool:
        """Whether the session is no longer kept."""
        return bool(self.days) and session.idle_ms > self.days * DAY_MS


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules, of which the first that is for a subject decides. The last one is for every subject."""

    rules: Sequence[Rule]

    @classmethod
    def of(cls, rules: Sequence[tuple[str, int]]) -> "Retention":
        """Of patterns and days."""
        return cls([Rule(pattern, days) for pattern, days in rules])

    def rule_of(self, subject: str) -> Rule:
        """The rule that decides."""
        return next(rule for rule in self.rules if rule.is_for(subject))

    @property
    def deletes(self) -> bool:
        """Whether any rule ends."""
        return any(rule.days for rule in self.rules)


class OldSessions(Protocol):
    """The sessions of all subjects. Both methods raise StorageUnavailableError."""

    async def page(self, after: str, limit: int) -> Sequence[Idle]:
        """The next sessions in the order of their ids."""
        ...

    async def expire(self, session_ids: Sequence[str], idle_ms: int) -> int:
        """Erase those of these sessions in which nothing was said for so long and no turn runs. Returns how many."""
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
        for rule in retention.rules:
            over = [each.session_id for each in page if retention.rule_of(each.subject) is rule and rule.is_over(each)]
            due += len(over)
            if over:
                erased += await sessions.expire(over, rule.days * DAY_MS)
        last = page[-1].session_id
    return erased, due - erased
