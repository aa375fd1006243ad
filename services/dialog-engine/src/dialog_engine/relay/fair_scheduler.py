"""Fair scheduling of one stream: which of the waiting tool calls may be published now. Pure: ids only, no I/O.

Workers take requests in the order of the stream, so a subject that fills it makes all others wait. At most `window`
calls of one subject are published and not begun; the rest are held back and released, oldest first, as those begin or
end. A new subject then waits behind `window` calls of each active subject, however many calls those have asked for.
"""

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class _Subject:
    """The calls of one subject that have not begun, oldest first."""

    held: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    published: dict[str, None] = field(default_factory=dict[str, None])


class FairScheduler:
    """The calls that have not begun, by subject."""

    def __init__(self, window: int) -> None:
        """`window`: how many calls of one subject may be published and not begun; 0 is any number."""
        self._window = window or sys.maxsize
        self._by_subject: dict[str, _Subject] = {}
        self._subject_of: dict[str, str] = {}
        self._ready: dict[str, None] = {}
        self.held = 0
        """How many calls are held back."""

    def __contains__(self, call: str) -> bool:
        return call in self._subject_of

    def __len__(self) -> int:
        return len(self._subject_of)

    @property
    def ready(self) -> bool:
        """Whether a call that was held back may be published."""
        return bool(self._ready)

    def room(self, subject: str) -> int:
        """How many new calls of this subject would be published now."""
        calls = self._by_subject.get(subject, _Subject())
        return 0 if calls.held else max(0, self._window - len(calls.published))

    def admit(self, subject: str, call: str) -> bool:
        """Add a new call. True when it may be published now; otherwise it is held back."""
        calls = self._by_subject.setdefault(subject, _Subject())
        self._subject_of[call] = subject
        # A later call does not overtake those that are held back.
        if not calls.held and len(calls.published) < self._window:
            calls.published[call] = None
            return True
        calls.held[call] = None
        self.held += 1
        self._update(subject)
        return False

    def add_published(self, subject: str, call: str) -> None:
        """Add a call that is published already, whatever the window."""
        self._by_subject.setdefault(subject, _Subject()).published[call] = None
        self._subject_of[call] = subject
        self._update(subject)

    def take(self, limit: int) -> list[str]:
        """The next calls to publish, `limit` at most: the oldest of each subject, the subjects in turn."""
        taken: list[str] = []
        while self._ready and len(taken) < limit:
            subject = next(iter(self._ready))
            del self._ready[subject]
            calls = self._by_subject[subject]
            call, _ = calls.held.popitem(last=False)
            self.held -= 1
            calls.published[call] = None
            taken.append(call)
            self._update(subject)
        return taken

    def put_back(self, call: str) -> None:
        """Hold back a call that could not be published, as the first of its subject."""
        subject = self._subject_of[call]
        calls = self._by_subject[subject]
        del calls.published[call]
        calls.held[call] = None
        calls.held.move_to_end(call, last=False)
        self.held += 1
        self._update(subject)

    def remove(self, call: str) -> bool:
        """Remove a call that has begun or ended; it may be unknown. True when it was held back."""
        subject = self._subject_of.pop(call, None)
        if subject is None:
            return False
        calls = self._by_subject[subject]
        was_held = call in calls.held
        if was_held:
            del calls.held[call]
            self.held -= 1
        else:
            del calls.published[call]
        self._update(subject)
        return was_held

    def blocking(self, limit: int) -> list[str]:
        """About `limit` published calls of the subjects that have others held back, oldest first."""
        full = [calls for calls in self._by_subject.values() if calls.held and len(calls.published) >= self._window]
        return [call for calls in full for call in islice(calls.published, max(1, limit // len(full)))]

    def _update(self, subject: str) -> None:
        calls = self._by_subject[subject]
        if calls.held and len(calls.published) < self._window:
            self._ready[subject] = None
            return
        self._ready.pop(subject, None)
        if not calls.held and not calls.published:
            del self._by_subject[subject]
