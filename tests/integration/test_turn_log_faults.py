"""The log of a turn under random faults: for each client ids only rise, and what it has read is what the turn said."""

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, aclosing
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import pytest

from callstream_runtime.connections import command_client
from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.events import REBUILT_EPOCH, START, Batch, Cursor, Readers
from dialog_engine.chat.replay import replay
from dialog_engine.event_log.stored_logs import LogStore
from dialog_engine.event_log.turn_log import LiveLog, LogTimes
from dialog_engine.event_log.turn_logs import RedisTurnLogs
from dialog_engine.http import sse
from dialog_engine.http.services import Services
from dialog_engine.http.streams import Streams, StreamTimes
from dialog_engine.model import (
    AssistantMessage,
    Done,
    DoneReason,
    MessageFinished,
    Reset,
    TextDelta,
    Turn,
    TurnStarted,
    Usage,
)
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from tests.marks import exhaustive, promise
from tests.support.transcript import Transcript

CLIENTS = 6
MORE = exhaustive("the same with other faults")
STEPS = 60
PACE_SECONDS = 0.02
"""How long it is between two steps at most: less than deltas are collected for, and than it takes to store them."""


@dataclass
class Store:
    """What is committed of the turn: all that outlives an engine."""

    messages: list[MessageRecord] = field(default_factory=list[MessageRecord])
    ended: bool = False

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        reason = "stop" if self.ended else None
        return TurnRecord("turn", "session", "done" if self.ended else "running", reason, Usage(), 1, None, 0, 1)

    async def turn_messages(self, turn_id: str) -> list[MessageRecord]:
        return [*self.messages]


class Engine:
    """One engine, as far as logs are concerned."""

    def __init__(self, redis: Any, store: Store) -> None:
        self.frames = RedisTurnLogs(LogStore(redis, Keys(), CLEAR), LogTimes(look=0.1, idle=0.2))
        self.streams = Streams(15, lambda: None, StreamTimes(end=0.1))
        self.archive, self.readers = store, Readers()
        self.clients: set[asyncio.Task[None]] = set()
        self._work = asyncio.create_task(self.frames.run())

    async def kill(self) -> None:
        """All that it had in memory is gone, and so are the connections of its clients."""
        tasks = [self._work, *self.clients]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def events(self, after: Cursor) -> AsyncGenerator[Batch]:
        """What a client gets that asks for what comes after `after`."""
        services, record = cast("Services", self), await self.archive.turn("ann", "turn")
        if record.status == "running":
            rest = sse.of_running(services, "ann", "turn", after)
        else:
            rest = sse.of_ended(services, record, after)
        async with aclosing(rest) as batches:
            async for batch in batches:
                yield batch


class World:
    """One turn, its engines, and what happens to them."""

    def __init__(self, redis: Any, chance: random.Random) -> None:
        self.redis = redis
        self.chance = chance
        self.store = Store()
        self.engines = [Engine(redis, self.store) for _ in range(3)]
        self.open_text = ""
        self.epoch = 0
        self.owner = self.engines[0]
        self.log: LiveLog
        self.superseded: list[LiveLog] = []

    def own(self, engine: Engine) -> None:
        """Take the turn up, as after a kill: what was being said is said again from its beginning."""
        self.epoch += 1
        self.owner, self.open_text = engine, ""
        self.log = engine.frames.open(Turn("turn", "session", "ann", self.epoch))
        self.log.append(TurnStarted("turn", "session"))
        if self.epoch > 1:
            self.log.append(Reset("taken up", replay("turn", self.store.messages)))

    async def step(self) -> None:
        """Something happens: mostly the turn says something."""
        happens = self.chance.choices(
            [self.say, self.finish_message, self.kill_owner, self.kill_other, self.take_over, self.flush, self.lose],
            [40, 5, 2, 2, 2, 2, 2],
        )
        await happens[0]()
        for log in self.superseded:
            log.append(TextDelta("from the past "))

    async def say(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            piece = f"{self.chance.randrange(1000)} "
            self.open_text += piece
            self.log.append(TextDelta(piece))

    async def finish_message(self) -> None:
        number = len(self.store.messages) + 1
        self.store.messages.append(MessageRecord(number, "turn", "assistant", self.open_text, False, 0, ()))
        self.log.append(MessageFinished(number, AssistantMessage(self.open_text)))
        self.open_text = ""

    async def kill_owner(self) -> None:
        await self._replace(self.owner)
        self.superseded = [log for log in self.superseded if log.turn.epoch < self.epoch]
        self.own(self.chance.choice(self.engines))

    async def kill_other(self) -> None:
        others = [engine for engine in self.engines if engine is not self.owner]
        await self._replace(self.chance.choice(others))

    async def take_over(self) -> None:
        """The owner stood still for too long. It goes on, and does not know yet."""
        others = [engine for engine in self.engines if engine is not self.owner]
        self.superseded.append(self.log)
        self.own(self.chance.choice(others))

    async def flush(self) -> None:
        await self.redis.flushall()

    async def lose(self) -> None:
        """Redis was started again and lacks the last entries."""
        key = Keys().turn("turn")
        there = await self.redis.xrange(key)
        async with self.redis.pipeline(transaction=True) as commands:
            commands.delete(key)
            for entry_id, fields in there[: self.chance.randint(0, len(there))]:
                commands.xadd(key, fields, id=entry_id)
            commands.expire(key, 60)
            await commands.execute()

    async def end(self) -> None:
        await self.finish_message()
        self.store.ended = True
        self.log.append(Done("turn", DoneReason.STOP, Usage(), 1))
        await self.log.close()

    async def _replace(self, engine: Engine) -> None:
        self.engines.remove(engine)
        await engine.kill()
        self.engines.append(Engine(self.redis, self.store))

    async def aclose(self) -> None:
        for engine in self.engines:
            await engine.kill()


class Reader:
    """A client: it comes back wherever it is let in, after its connection was cut, and may be slow."""

    def __init__(self, world: World, chance: random.Random) -> None:
        self._world = world
        self._chance = chance
        self._slow = chance.random() < 0.3
        self.transcript = Transcript()
        self.inexact: list[str] = []
        """Finished messages whose text was not what its pieces had said."""
        self.resets: list[str] = []
        self.seen: list[Transcript] = []
        """What it knew after some of the events."""

    async def run(self) -> None:
        while self.transcript.done is None:
            engine = self._chance.choice(self._world.engines)
            connection = asyncio.create_task(self._read(engine, self._chance.randint(1, 20)))
            engine.clients.add(connection)
            await asyncio.wait([connection])
            engine.clients.discard(connection)
            if not connection.cancelled() and (error := connection.exception()):
                raise error

    async def _read(self, engine: Engine, events: int) -> None:
        after = Cursor.parse(self.transcript.last_id) if self.transcript.last_id else START
        async with aclosing(engine.events(after)) as batches:
            async for batch in batches:
                for frame in batch:
                    self._take(frame.id, frame.name, msgspec.json.decode(frame.data))
                    events -= 1
                    if not events:
                        return
                await asyncio.sleep(self._chance.random() * 5 * PACE_SECONDS if self._slow else 0)
        await asyncio.sleep(PACE_SECONDS)

    def _take(self, event_id: str, name: str, data: Any) -> None:
        rebuilt = Cursor.parse(event_id).epoch >= REBUILT_EPOCH
        if name == "message" and not rebuilt and self.transcript.open_text != data["content"]:
            self.inexact.append(f"{event_id}: {self.transcript.open_text!r} became {data['content']!r}")
        if name == "reset":
            self.resets.append(f"{event_id} {data['reason']}")
        self.transcript.take(event_id, name, data)
        if self._chance.random() < 0.2:
            self.seen.append(deepcopy(self.transcript))


@promise("ids never go back: what died with an engine is a reset in the next epoch")
@promise("streams cut at random have no gap and no duplicate")
@pytest.mark.parametrize("seed", [0, 1, 2, *(pytest.param(seed, marks=MORE) for seed in range(3, 8))])
async def test_ids_only_rise_and_the_text_is_complete_whatever_fails(redis_url: str, seed: int) -> None:
    chance = random.Random(seed)
    async with AsyncExitStack() as stack:
        redis: Any = await stack.enter_async_context(aclosing(command_client(redis_url)))
        world = await stack.enter_async_context(aclosing(World(redis, chance)))
        world.own(world.owner)
        readers = [Reader(world, random.Random(f"{seed} {number}")) for number in range(CLIENTS)]
        following = [asyncio.create_task(reader.run()) for reader in readers]
        for _ in range(STEPS):
            await world.step()
            await asyncio.sleep(chance.random() * PACE_SECONDS)
        await world.end()
        async with asyncio.timeout(20):
            await asyncio.gather(*following)

        said = "".join(message.content for message in world.store.messages)
        for reader in readers:
            assert reader.transcript.repeats == []
            assert reader.inexact == []
            assert reader.transcript.text == said
            for known in reader.seen:
                await _read_to_the_end(chance.choice(world.engines), known)
                assert known.repeats == []
                assert known.text == said
        await redis.delete(Keys().turn("turn"))


async def _read_to_the_end(engine: Engine, known: Transcript) -> None:
    async with aclosing(engine.events(Cursor.parse(known.last_id))) as batches:
        async for batch in batches:
            for frame in batch:
                known.take(frame.id, frame.name, msgspec.json.decode(frame.data))
