"""Counts requests, turns and streams against the limits of their subject."""

import asyncio
from collections.abc import Awaitable, Callable

from dialog_engine.http.guards import Subject
from dialog_engine.http.services import Engine, Services
from dialog_engine.limits import Slot
from dialog_engine.model import Turn

_watches: set[asyncio.Task[None]] = set()
"""Tasks that wait for the end of a turn: the loop itself keeps only weak references."""


async def within_limits(engine: Engine, subject: Subject) -> None:
    """Dependency of every route of the API: counts the request. Raises LimitExceededError."""
    await engine.consumption.request(subject)


async def counted_turn(engine: Services, subject: str, start: Callable[[], Awaitable[Turn]]) -> Turn:
    """Start a turn, and count it until it has ended. Raises LimitExceededError, and what `start` raises."""
    slot = await engine.consumption.turn(subject)
    try:
        turn = await start()
    except BaseException:
        await slot.release()
        raise
    watch = asyncio.create_task(_count(engine, turn, slot), name=f"limits of turn {turn.turn_id}")
    _watches.add(watch)
    watch.add_done_callback(_watches.discard)
    return turn


async def _count(engine: Services, turn: Turn, slot: Slot) -> None:
    try:
        await engine.consumption.spent(turn.subject, await engine.turns.ended(turn.turn_id))
    finally:
        await slot.release()
