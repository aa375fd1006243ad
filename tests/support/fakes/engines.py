"""The engines that share a store, in memory."""

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass, field, replace

from dialog_engine.chat.outbox import OutboxRow
from dialog_engine.chat.ports import Adopted, Engines, OwnedTurn, SeenEngine
from dialog_engine.model import Turn

NO_LEASE = -1
"""Stands for the lease of an engine that owns a turn and has none."""


@dataclass
class StoredOwner:
    """A turn and its owner, as stored."""

    turn: Turn
    owner: str
    crashes: int = 0
    stopped: bool = False
    runs: bool = True


@dataclass
class SharedTurns:
    """The store that engines share. `now` is its clock, in milliseconds."""

    now: int = 1_000_000
    leases: dict[str, int] = field(default_factory=dict[str, int])
    turns: dict[str, StoredOwner] = field(default_factory=dict[str, StoredOwner])
    facts: dict[str, list[OutboxRow]] = field(default_factory=dict[str, list[OutboxRow]])

    def add(self, owner: str, turn_id: str, *, crashes: int = 0) -> Turn:
        """Begin a turn at that engine."""
        turn = Turn(turn_id, f"session of {turn_id}", "ada")
        self.turns[turn_id] = StoredOwner(turn, owner, crashes)
        return turn

    def of(self, owner: str) -> list[StoredOwner]:
        """The running turns of an engine."""
        return [stored for stored in self.turns.values() if stored.owner == owner and stored.runs]


class MemoryEngines(Engines):
    """The leases as one engine sees them. While `error` is set, every method raises it."""

    def __init__(self, store: SharedTurns, engine_id: str) -> None:
        self.store = store
        self.engine_id = engine_id
        self.error: Exception | None = None
        self.refused = 0
        self.looks = 0
        self.renewals = 0
        self.held: asyncio.Event | None = None

    def _use(self) -> SharedTurns:
        if self.error is not None:
            self.refused += 1
            raise self.error
        return self.store

    async def register(self, lease_ms: int) -> bool:
        store = self._use()
        before = store.leases.get(self.engine_id)
        store.leases[self.engine_id] = store.now + lease_ms
        return before == 0

    async def renew(self, lease_ms: int, waiting: Container[str]) -> Sequence[OwnedTurn]:
        store = self._use()
        self.renewals += 1
        if self.held:
            await self.held.wait()
        store.leases[self.engine_id] = store.now + lease_ms
        return [OwnedTurn(s.turn.turn_id, s.turn.epoch, s.stopped) for s in store.of(self.engine_id)]

    async def stop_requests(self) -> Sequence[str]:
        return [stored.turn.turn_id for stored in self._use().of(self.engine_id) if stored.stopped]

    async def fenced(self, turns: Sequence[Turn]) -> Sequence[str]:
        found = self._use().turns
        return [
            turn.turn_id
            for turn in turns
            if turn.turn_id not in found
            or (found[turn.turn_id].owner, found[turn.turn_id].turn.epoch) != (self.engine_id, turn.epoch)
        ]

    async def others(self) -> Sequence[SeenEngine]:
        store = self._use()
        self.looks += 1
        without_lease = {stored.owner: NO_LEASE for stored in store.turns.values() if stored.runs}
        leases = without_lease | store.leases
        return [SeenEngine(engine_id, lease) for engine_id, lease in leases.items() if engine_id != self.engine_id]

    async def adopt(self, seen: SeenEngine, limit: int) -> Sequence[Adopted]:
        if self._use().leases.get(seen.engine_id, NO_LEASE) != seen.lease_until:
            return []
        return [self._adopted(stored, seen.released) for stored in self.store.of(seen.engine_id)[:limit]]

    async def adopt_own(self, turn_ids: Sequence[str] | None, *, released: bool = False) -> Sequence[Adopted]:
        own = self._use().of(self.engine_id)
        return [self._adopted(each, released) for each in own if turn_ids is None or each.turn.turn_id in turn_ids]

    async def remove(self, seen: SeenEngine) -> Sequence[OutboxRow] | None:
        store = self._use()
        if store.leases.get(seen.engine_id, NO_LEASE) != seen.lease_until or store.of(seen.engine_id):
            return None
        store.leases.pop(seen.engine_id, None)
        return self.store.facts.pop(seen.engine_id, [])

    async def release(self) -> None:
        self._use().leases[self.engine_id] = 0

    def _adopted(self, stored: StoredOwner, released: bool) -> Adopted:
        stored.turn = replace(stored.turn, epoch=stored.turn.epoch + 1)
        stored.owner = self.engine_id
        stored.crashes = 0 if released else stored.crashes + 1
        rows = [OutboxRow(1, "ToolCallRequested", stored.turn.turn_id, b"")]
        return Adopted(stored.turn, stored.stopped, stored.crashes, rows)
