"""Large results that wait for their calls: one suite for SQLite and for PostgreSQL."""

import msgspec

from dialog_engine.storage.large_results import UNUSED_MS
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore, tool_call

LARGE = ToolOutcome(CallState.SUCCEEDED, (TextBlock("much"),))
DATA = msgspec.json.encode(LARGE)


async def kept(storage: EngineStore) -> int:
    [row] = await storage.database.read("SELECT count(*) AS n FROM large_results")
    return row.n


@promise("a large result goes with its call: when that is committed, when it is deleted, and after an hour unused")
async def test_a_result_is_kept_until_its_call_is_committed(storage: EngineStore) -> None:
    turn = await begin(storage.turns, "ada", None, "Find it")
    call, other = tool_call(), tool_call()
    await storage.add_round(turn, call, other)
    id_ = call.correlation_id
    assert await storage.large.keep(id_, 2, "new", DATA)
    assert not await storage.large.keep(id_, 1, "old", b"{}"), "a worker that has lost the call"
    assert await storage.large.keep(id_, 2, "new", DATA), "again, because the answer was lost"
    assert await storage.large.fetch(id_, "old") is None
    assert await storage.large.fetch(id_, "new") == DATA

    assert await storage.calls.add_result(turn, call, msgspec.structs.replace(LARGE, kept="new"))
    assert await kept(storage) == 0
    stored = await storage.archive.outcome("ada", turn.turn_id, id_)
    assert stored == LARGE
    for ended in (id_, "of nobody"):
        assert not await storage.large.keep(ended, 3, "late", DATA)

    assert await storage.large.keep(other.correlation_id, 1, "digest", DATA)
    await storage.database.write(lambda tx: tx.change("UPDATE large_results SET sent_at = sent_at - $1", UNUSED_MS + 1))
    await storage.large.sweep()
    assert await kept(storage) == 1, "its call has no outcome yet"
    await storage.calls.add_result(turn, other, LARGE)
    await storage.large.sweep()
    assert await kept(storage) == 0
