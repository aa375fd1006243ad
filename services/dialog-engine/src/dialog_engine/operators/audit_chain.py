"""`dialog-engine audit verify` and `audit head`: whether the events of the audit are those that were sealed."""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from itertools import chain

from dialog_engine.errors import ConfigurationError
from dialog_engine.operators.audit import PAGE, Query, at_text
from dialog_engine.storage.audit import COLUMNS, DIGEST_KEY, TEXT_MAX
from dialog_engine.storage.audit_chain import LAST_SEAL, PRUNED_TO, SEALED_AT_ONCE, Seal, next_seal
from dialog_engine.storage.database import Row
from dialog_engine.storage.statements import open_value
from plugins_contract.encryption import Cipher, DecryptionError

_NUMBER = re.compile(r"[0-9]{1,18}")
MAX_PROBLEMS = 20
"""After so many problems the rest of the chain is not read."""
_EVENT = ", ".join(("seq", "at", *(f"substr({column}, 1, {TEXT_MAX + 1}) AS {column}" for column in COLUMNS)))
"""An event, without what no engine has written: a value may be of any size."""


@dataclass(slots=True)
class Verified:
    """What was found. Without `problems` every sealed event is as it was sealed, and none is missing.

    `pruned_to` is the last event that the retention has deleted, sealed at `pruned_at`. Events that are not sealed yet
    are `unsealed`, up to `unsealed_to`, the first of them at `unsealed_at`. Times are Unix milliseconds.
    """

    head: Seal
    pruned_to: int = 0
    pruned_at: int = 0
    unsealed: int = 0
    unsealed_to: int = 0
    unsealed_at: int = 0
    problems: list[str] = field(default_factory=list[str])

    def lines(self) -> Generator[str]:
        """The report for people."""
        yield from self.problems
        if not self.problems:
            yield f"{self.head.number} seals hold, over the events up to {self.head.last_seq}."
            yield f"The head is {named(self.head)}."
        if self.pruned_to:
            yield f"The events up to {self.pruned_to}, of {at_text(self.pruned_at)}, were deleted by the retention."
        if self.unsealed:
            since = f"from {self.head.last_seq + 1} to {self.unsealed_to}, since {at_text(self.unsealed_at)}"
            yield f"Not sealed yet: {self.unsealed} events, {since}."


def named(seal: Seal) -> str:
    """The seal as `--head` takes it."""
    return f"{seal.number}:{seal.hash}"


def head_of(query: Query) -> Seal:
    """The last seal; that with the number 0 where there is none."""
    rows = query(LAST_SEAL)
    return Seal(**rows[0].by_name()) if rows else Seal()


def verify(query: Query, cipher: Cipher, expected: str = "") -> Verified:
    """Compare the events with their seals. `expected` is an earlier head, which must be one of the seals.

    Raises:
        ConfigurationError: the store has no key of the chain, or one that is none.
        DecryptionError: the key is encrypted, and cannot be read with the keys that are set.
    """
    found = Verified(head_of(query))
    if found.head.number:
        # What is committed after this has higher numbers, or a later seal.
        _compare(query, _key(query, cipher), found, expected)
    elif expected:
        found.problems.append("there is no seal, but a head was expected")
    last_seq = found.head.last_seq
    [rest] = query("SELECT count(*) AS events, max(seq) AS last_seq, min(at) AS at FROM audit WHERE seq > $1", last_seq)
    found.unsealed, found.unsealed_to, found.unsealed_at = rest.events, rest.last_seq or 0, rest.at or 0
    return found


def _compare(query: Query, key: bytes, found: Verified, expected: str) -> None:
    pruned_to = _pruned_to(query)
    seals = _seals(query, found.head.number)
    before, first = Seal(), next(seals)
    problems: list[tuple[int, str]] = []
    if first.last_seq <= pruned_to:
        found.pruned_to, found.pruned_at, before = first.last_seq, first.at, first
        if query("SELECT seq FROM audit WHERE seq <= $1 LIMIT 1", first.last_seq):
            problems.append((first.last_seq, f"events up to {first.last_seq} are there, which were deleted"))
    else:
        seals = chain([first], seals)
    met = not expected or expected == named(before)
    events = _Events(query, before.last_seq)
    for seal in seals:
        covered = events.upto(seal.last_seq)
        met = met or expected == named(seal)
        where = f"seal {seal.number}, events {before.last_seq + 1} to {seal.last_seq}, of {at_text(seal.at)}"
        if seal.number != before.number + 1:
            problems.append((seal.last_seq, f"{where}: the seals before it are missing"))
        elif next_seal(key, before, seal.at, seal.last_seq, covered) != seal:
            problems.append((seal.last_seq, f"{where}: an event was changed, added or deleted, or the seal was"))
        before = seal
        if len(problems) >= MAX_PROBLEMS:
            break
    if (now := _pruned_to(query)) != pruned_to:  # what the retention has deleted meanwhile is no problem
        problems = [(last_seq, text) for last_seq, text in problems if last_seq > now]
    found.problems += [text for _, text in problems]
    if not met:
        found.problems.append(f"no seal is {expected}: the chain was written anew or cut, or that seal was deleted")


class _Events:
    """The events behind one of them, read in pages."""

    def __init__(self, query: Query, seq: int) -> None:
        self._rows = self._read(query, seq)
        self._next = next(self._rows, None)

    def upto(self, last_seq: int) -> list[Row]:
        """The next events, up to that with this number. Of more than a seal of an engine covers, one more is kept."""
        found: list[Row] = []
        while self._next is not None and self._next.seq <= last_seq:
            if len(found) <= SEALED_AT_ONCE:
                found.append(self._next)
            self._next = next(self._rows, None)
        return found

    @staticmethod
    def _read(query: Query, seq: int) -> Iterator[Row]:
        while rows := query(f"SELECT {_EVENT} FROM audit WHERE seq > $1 ORDER BY seq LIMIT $2", seq, PAGE):
            yield from rows
            seq = rows[-1].seq


def _seals(query: Query, last: int) -> Iterator[Seal]:
    number = 0
    while rows := query(
        "SELECT number, at, last_seq, hash FROM audit_seals WHERE number > $1 AND number <= $2"
        " ORDER BY number LIMIT $3",
        number,
        last,
        PAGE,
    ):
        yield from (Seal(**row.by_name()) for row in rows)
        number = rows[-1].number


def _pruned_to(query: Query) -> int:
    rows = query("SELECT value FROM meta WHERE key = $1", PRUNED_TO)
    return (
        int(rows[0].value) if rows and _NUMBER.fullmatch(rows[0].value) else 0
    )  # then the first seal is found missing


def _key(query: Query, cipher: Cipher) -> bytes:
    rows = query("SELECT value FROM meta WHERE key = $1", DIGEST_KEY)
    if not rows:
        raise ConfigurationError("the store has no key of the audit: its seals cannot be verified")
    try:
        return bytes.fromhex(open_value(cipher, rows[0].value, "meta.value", DIGEST_KEY))
    except DecryptionError:
        raise
    except ValueError:
        raise ConfigurationError(
            "the key of the audit was changed in the store: its seals cannot be verified"
        ) from None
