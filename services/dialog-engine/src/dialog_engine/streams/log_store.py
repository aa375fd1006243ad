"""The logs of turns in Redis: one stream each, with ids of our own."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis

from dialog_engine.chat.frames import Cursor
from dialog_engine.streams.log_entries import Entry, entry_from_fields
from dialog_engine.streams.scripts import run_each
from dialog_engine.streams.turn_log import LiveLog
from plugins_contract.keys import Keys
from plugins_contract.ledger.scripts import Script, script

LIFETIME_SECONDS = 24 * 3600
PAGE = 100
"""How many entries are read at once."""


@dataclass(frozen=True, slots=True)
class Stored:
    """The stream has everything up to this number."""

    number: int


@dataclass(frozen=True, slots=True)
class Lost:
    """The stream has less than it had: only up to this number. Nothing was written."""

    number: int


@dataclass(frozen=True, slots=True)
class Superseded:
    """Another owner has begun a later epoch. Nothing was written."""

    epoch: int


Answer = Stored | Lost | Superseded | Exception


@cache
def append_script() -> Script:
    """The script that appends."""
    return script("turn_log", files(__package__ or __name__).joinpath("turn_log.lua").read_text())


class LogStore:
    """Appends to streams and reads them. Errors are those of the Redis client."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    async def append(self, logs: Sequence[LiveLog]) -> list[Answer]:
        """Store what each log has and Redis has not, all in one round trip. An answer for each."""
        commands = [([self._keys.turn(live.turn.turn_id)], _arguments(live)) for live in logs]
        return [_answer(answer) for answer in await run_each(self._redis, append_script(), commands)]

    async def read(
        self, turn_id: str, after: Cursor, *, before_epoch: int | None = None
    ) -> AsyncGenerator[list[Entry]]:
        """What is there now after `after`, page by page; of earlier epochs only, when one is given."""
        end = "+" if before_epoch is None else f"({before_epoch}-0"
        while True:
            page: Any = await self._redis.xrange(self._keys.turn(turn_id), f"({after}", end, count=PAGE)
            if entries := _entries(page):
                yield entries
                after = entries[-1].cursor
            if len(page) < PAGE:
                return

    async def read_many(self, places: Mapping[str, Cursor]) -> dict[str, list[Entry]]:
        """What is there now after the place in each log, PAGE entries at most, in one command."""
        keys: Any = {self._keys.turn(turn_id): str(place) for turn_id, place in places.items()}
        turns = dict(zip(keys, places, strict=True))
        answer: Any = await self._redis.xread(keys, count=PAGE)
        return {turns[key.decode()]: _entries(page) for key, page in answer}

    async def newest(self, turn_id: str) -> Entry | None:
        """The last entry; None when there is no log."""
        entries = _entries(await self._redis.xrevrange(self._keys.turn(turn_id), count=1))
        return entries[0] if entries else None


def _arguments(live: LiveLog) -> list[str | int]:
    args: list[str | int] = [live.turn.epoch, live.stored_up_to, LIFETIME_SECONDS]
    for entry in live.to_store():
        args += (entry.last, entry.name, *entry.field)
    return args


def _answer(answer: Any) -> Answer:
    if isinstance(answer, Exception):
        return answer
    kind, number = answer
    match kind:
        case b"stored":
            return Stored(number)
        case b"lost":
            return Lost(number)
        case _:
            return Superseded(number)


def _entries(page: Any) -> list[Entry]:
    return [entry_from_fields(Cursor.parse(entry_id.decode()), fields) for entry_id, fields in page]
