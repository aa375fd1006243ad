"""Slots are given in order, given back whatever happens, and those who wait can be turned away."""

import asyncio

import anyio
import pytest

from plugins_mcp.mcp.tool_calls import Slots
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


class Party:
    """Guests who want a slot each."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self.inside: list[int] = []
        self.turned_away: list[int] = []
        self.leave = asyncio.Event()

    async def guest(self, number: int) -> None:
        async with self._slots.taken() as taken:
            (self.inside if taken else self.turned_away).append(number)
            if taken:
                await self.leave.wait()


async def test_slots_are_given_in_the_order_of_asking() -> None:
    party = Party(Slots(2))
    async with anyio.create_task_group() as guests:
        for number in range(6):
            guests.start_soon(party.guest, number)
        await wait_until(lambda: len(party.inside) == 2)
        party.leave.set()
    assert party.inside == list(range(6))


async def test_those_who_wait_can_be_turned_away_and_those_inside_stay() -> None:
    slots = Slots(1)
    party = Party(slots)
    async with anyio.create_task_group() as guests:
        for number in range(3):
            guests.start_soon(party.guest, number)
        await wait_until(lambda: party.inside)
        await anyio.wait_all_tasks_blocked()
        slots.turn_away()
        await wait_until(lambda: party.turned_away == [1, 2])
        guests.start_soon(party.guest, 3)
        await anyio.wait_all_tasks_blocked()
        assert party.inside == [0]
        party.leave.set()
    assert party.inside == [0, 3]


async def test_one_who_gives_up_waiting_is_passed_over() -> None:
    slots = Slots(1)
    party = Party(slots)
    party.leave.set()
    async with slots.taken():
        waiters = [asyncio.create_task(party.guest(number)) for number in (1, 2)]
        await anyio.wait_all_tasks_blocked()
        waiters[0].cancel()
        await asyncio.wait(waiters[:1])
    await asyncio.wait(waiters, timeout=5)
    assert party.inside == [2]


async def test_a_slot_handed_to_one_who_gives_up_in_that_moment_goes_to_the_next() -> None:
    slots = Slots(1)
    waiters: list[asyncio.Task[None]] = []
    async with slots.taken():
        party = Party(slots)
        party.leave.set()
        waiters += [asyncio.create_task(party.guest(number)) for number in (1, 2)]
        await anyio.wait_all_tasks_blocked()
    # The slot is the first one's now, who has not moved yet.
    waiters[0].cancel()
    await asyncio.wait(waiters, timeout=5)
    assert party.inside == [2]
