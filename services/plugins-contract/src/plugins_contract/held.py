"""Calls that workers keep open while people are asked.

A server of a protocol before 2026-07-28 asks by a request of its own, and waits for the answer in the middle of the
call. The worker keeps that call open, and `rpc.plugins.held` has a field for it, by the id of the round that ended with
the question. Engines read it once a second, to learn of questions that their servers do not wait for any more. It
decides about no answer: what a worker does not keep open it cannot answer, whatever is written there.
"""

import contextlib
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from plugins_contract.messages import NOT_READABLE

KEPT_SECONDS = 2 * 86_400
"""The lifetime of the hash after a worker's last write. Workers write it while they keep a call open."""
LONGEST_SECONDS = 25 * 3600
"""For how long a call is kept open: a question expires after a day, and operators may set a longer time."""


class HeldState(StrEnum):
    """What a worker says of a call that it kept open."""

    OPEN = "open"
    """The server waits for the answer."""
    OVER = "over"
    """The call goes on, or has ended, without an answer: the next round brings its end."""
    LOST = "lost"
    """Session or worker ended: nobody can be answered."""


class HeldCall(msgspec.Struct, frozen=True, rename="camel"):
    """One field. `pool` is that of the worker alone."""

    pool: str
    state: HeldState


def readable(rows: Mapping[bytes, bytes]) -> Iterable[tuple[str, HeldCall]]:
    """The fields of a release like this one, by the id of their round. Others are not an error."""
    for name, row in rows.items():
        with contextlib.suppress(*NOT_READABLE):
            _, more, number = (request_id := name.decode()).partition(":")
            if not more or (number.isascii() and number.isdecimal() and len(number) <= 6):
                yield request_id, msgspec.json.decode(row, type=HeldCall)
