"""A path of 10,000 turns: one suite for SQLite and for PostgreSQL."""

import math
import time
from itertools import pairwise

from plugins_contract.messages import new_id
from tests.marks import exhaustive, promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore

LONG, PAGES = 10_000, 20
_TURN = (
    "INSERT INTO turns (turn_id, session_id, status, created_at, parent_turn_id, path_before)"
    " VALUES ($1, $2, 'done', now_ms(), $3, $4)"
)
_MESSAGE = (
    "INSERT INTO messages (session_id, turn_id, number, role, content, created_at)"
    " VALUES ($1, $2, $3, $4, 'something', now_ms())"
)


@promise("a model sees the path of its turn only, and a page of a path costs as much as the page")
@exhaustive("10,000 turns")
async def test_a_page_of_a_path_of_10_000_turns_costs_as_much_as_one_of_a_short_path(storage: EngineStore) -> None:
    async def seconds(session_id: str) -> float:
        """The least time of a page at the end of the path, or before it."""
        before, least = None, math.inf
        for _ in range(PAGES):
            began = time.perf_counter()
            page = (await storage.archive.transcript("ada", session_id, limit=100, before=before)).page
            least = min(least, time.perf_counter() - began)
            assert len(page.messages) == 100
            before = page.messages[0].message_id if before is None else None
        return least

    times: list[float] = []
    for turns in (2 * PAGES * 5, LONG):
        begun = await begin(storage.turns, "ada", None, "first")
        await storage.end(begun)
        session_id = begun.session_id
        path = [begun.turn_id, *(new_id() for _ in range(turns))]
        chain = [(turn, session_id, parent, 2 * place) for place, (parent, turn) in enumerate(pairwise(path), 1)]
        said = [
            (session_id, turn, 2 * place + number + 2, role)
            for place, turn in enumerate(path[1:], 1)
            for number, role in enumerate(("user", "assistant"))
        ]
        await storage.database.write(lambda tx, chain=chain: tx.execute_many(_TURN, chain))
        await storage.database.write(lambda tx, said=said: tx.execute_many(_MESSAGE, said))
        times.append(await seconds(session_id))
    short, long = times
    assert long < 3 * short + 0.005
