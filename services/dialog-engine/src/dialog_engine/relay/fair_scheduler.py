"""Fair shares of one stream: which of the tool calls that wait may stand in it now.

Workers take requests in the order of the stream, so whoever fills it makes all others wait. Of one subject at most
`window` calls stand there that have not begun; the rest is held back and goes, oldest first, as those begin or end. Who
comes new then waits behind `window` calls of each active subject, however many were asked for. Pure: ids only, no I/O.
"""

import sys
from collections import OrderedDict
from dataclasses import dataclass, field
from itertools import islice


@dataclass(slots=True)
class _Share:
    """The calls of one subject, oldest first: those that are held back, and those that have a place in the stream."""

    held: OrderedDict[str, None] = field(default_factory=OrderedDict[str, None])
    standing: dict[str, None] = field(default_factory=dict[str, None])


class FairScheduler:
    """The calls that have not begun, by subject. Any other call has begun, has ended, or was never told of."""

    def __init__(self, window: int) -> None:
        """So many calls of one subject may stand in the stream; 0: any number."""
        self._window = window or sys.maxsize
        self._shares: dict[str, _Share] = {}
        self._subjects: dict[str, str] = {}
        self._ready: dict[str, None] = {}
        self.held = 0
        """How many calls are held back."""

    def __contains__(self, call: str) -> bool:
        return call in self._subjects

    def __len__(self) -> int:
        return len(self._subjects)

    @property
    def ready(self) -> bool:
        """Whether a call that was held back may go."""
        return bool(self._ready)

    def enter(self, subject: str, call: str) -> bool:
        """Take in a new call. True when it may go now, and then it has its place; else it is held back."""
        share = self._shares.setdefault(subject, _Share())
        self._subjects[call] = subject
        # One that comes later does not overtake those that were held back.
        if not share.held and len(share.standing) < self._window:
            share.standing[call] = None
            return True
        share.held[call] = None
        self.held += 1
        self._note(subject)
        return False

    def stand(self, subject: str, call: str) -> None:
        """Take in a call that has its place already, whatever the window."""
        self._shares.setdefault(subject, _Share()).standing[call] = None
        self._subjects[call] = subject
        self._note(subject)

    def take(self, limit: int) -> list[str]:
        """The next calls that may go: of each subject its oldest, the subjects in turn. Each has its place then."""
        taken: list[str] = []
        while self._ready and len(taken) < limit:
            subject = next(iter(self._ready))
            del self._ready[subject]
            share = self._shares[subject]
            call, _ = share.held.popitem(last=False)
            self.held -= 1
            share.standing[call] = None
            taken.append(call)
            self._note(subject)
        return taken

    def put_back(self, call: str) -> None:
        """Hold back a call that could not be put on the stream: as the first of its subject."""
        subject = self._subjects[call]
        share = self._shares[subject]
        del share.standing[call]
        share.held[call] = None
        share.held.move_to_end(call, last=False)
        self.held += 1
        self._note(subject)

    def leave(self, call: str) -> bool:
        """Forget a call that has begun or ended; its place is free. True when it was held back. It may be unknown."""
        subject = self._subjects.pop(call, None)
        if subject is None:
            return False
        share = self._shares[subject]
        was_held = call in share.held
        if was_held:
            del share.held[call]
            self.held -= 1
        else:
            del share.standing[call]
        self._note(subject)
        return was_held

    def in_the_way(self, limit: int) -> list[str]:
        """The oldest calls that stand in the stream while others of their subject are held back: about `limit`."""
        full = [share for share in self._shares.values() if share.held and len(share.standing) >= self._window]
        return [call for share in full for call in islice(share.standing, max(1, limit // len(full)))]

    def _note(self, subject: str) -> None:
        share = self._shares[subject]
        if share.held and len(share.standing) < self._window:
            self._ready[subject] = None
            return
        self._ready.pop(subject, None)
        if not share.held and not share.standing:
            del self._shares[subject]
