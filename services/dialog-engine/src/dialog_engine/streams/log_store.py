"""The logs of turns in Redis: one stream each, with ids of our own."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from dialog_engine.chat.frames import Cursor
from dialog_engine.streams.growing_log import Entry, entry_from_fields
from dialog_engine.streams.turn_log import LiveLog
from plugins_contract.keys import Keys

LIFETIME_SECONDS = 24 * 3600
PAGE = 100
"""How many entries are read at once."""


class LogStore:
    """Appends to streams and reads them. Errors are those of the Redis client."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        untyped: Any = redis
        self._append = untyped.register_script(files(__package__ or __name__).joinpath("turn_log.lua").read_text())
        self._keys = keys

    async def append(self, logs: Sequence[LiveLog]) -> list[Cursor | Exception]:
        """Store what each log has and Redis has not, all in one round trip.

        The answer for each is the id of its last entry in Redis, or why it could not be asked for. Nothing of a log is
        stored when Redis does not have what the log says that it has, or has a later epoch.
        """
        commands = [self._command(live) for live in logs]
        answers = await self._run(commands)
        while any(isinstance(answer, NoScriptError) for answer in answers):
            # Those that were run are refused now, and say what Redis has.
            await self._redis.execute_command("SCRIPT", "LOAD", self._append.script)
            answers = await self._run(commands)
        return [answer if isinstance(answer, Exception) else Cursor.parse(answer.decode()) for answer in answers]

    def _command(self, live: LiveLog) -> list[str | int]:
        key, epoch = self._keys.turn(live.turn.turn_id), live.turn.epoch
        command: list[str | int] = ["EVALSHA", self._append.sha, 1, key, epoch, live.stored, LIFETIME_SECONDS]
        for entry in live.to_store():
            command += (f"{epoch}-{entry.seq}", entry.name, entry.data)
        return command

    async def _run(self, commands: Sequence[list[str | int]]) -> list[Any]:
        if len(commands) == 1:
            # Most often; a pipeline of one takes twice the processor time.
            try:
                return [await self._redis.execute_command(*commands[0])]
            except ResponseError as error:
                return [error]
        pipeline = self._redis.pipeline(transaction=False)
        for command in commands:
            pipeline.execute_command(*command)
        return await pipeline.execute(raise_on_error=False)

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


def _entries(page: Any) -> list[Entry]:
    return [entry_from_fields(Cursor.parse(entry_id.decode()), fields) for entry_id, fields in page]
