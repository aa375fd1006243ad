"""A session that goes from one engine's file to another's."""

from pathlib import Path

import msgspec
import pytest

from dialog_engine.chat.copies import SessionCopy, decoded, encoded
from dialog_engine.chat.facts import TOOL_CALL_FINISHED, ToolCallFinished
from dialog_engine.chat.journal import JournalEntry, Step
from dialog_engine.errors import TurnLostError
from dialog_engine.model import AssistantMessage, Done, DoneReason, ToolCall, Usage
from dialog_engine.storage.approvals import SqliteApprovals
from dialog_engine.storage.archive import SqliteArchive
from dialog_engine.storage.calls import SqliteCalls
from dialog_engine.storage.copies import SqliteCopies, session_head, session_rows
from dialog_engine.storage.database import Database, Transaction, open_database
from dialog_engine.storage.elsewhere import SqliteElsewhere
from dialog_engine.storage.journal import SqliteJournal
from dialog_engine.storage.outbox import SqliteOutbox
from dialog_engine.storage.turns import SqliteTurns
from dialog_engine.tool_calls.approvals import question_for
from plugins_contract.catalogue import ApprovalPolicy
from tests.support.beginnings import begin
from tests.support.twins import Workshop, succeeded, tool

pytestmark = pytest.mark.anyio

TOOL = tool("a__b", approval=ApprovalPolicy.ALWAYS)
OPEN = ToolCall("call_1", "c1", "mcp_query", "{}", tool="a__b")
ASKED = ToolCall("call_2", "c2", "mcp_query", "{}", tool="a__b")


async def test_who_takes_a_turn_over_knows_the_tools_that_its_calls_mean(tmp_path: Path) -> None:
    async with open_database(tmp_path / "here.db") as here, open_database(tmp_path / "there.db") as there:
        turn = await begin(SqliteTurns(here, lambda _: None), "ada", None, "Hi")
        request = Workshop().request(turn, OPEN, TOOL, {})
        question = question_for(TOOL, {}, 0, 60_000)
        assert question is not None
        message = AssistantMessage("", (OPEN, ASKED))
        await SqliteCalls(here, lambda _: None).add_round(turn, message, [request], {}, {"c2": question})

        def unit(tx: Transaction) -> SessionCopy:
            head = session_head(tx, turn.session_id)
            assert head is not None
            rows = encoded(session_rows(tx, turn.session_id))
            return SessionCopy(head, 1, tuple(decoded(rows)))

        found = await SqliteCopies(there, "mailbox").take_over(await here.write(unit), turn.turn_id, 2)

        assert found is not None
        taken, _ = found
        calls = SqliteCalls(there, lambda _: None)
        archive = SqliteArchive(there, calls)
        assert [each.call for each in await archive.open_calls(taken)] == [OPEN]
        assert [each.call for each in await SqliteApprovals(there, lambda _: None).waiting(taken)] == [ASKED]
        assert (await archive.messages(turn.session_id))[-1] == message
        await calls.add_result(taken, OPEN, succeeded("done"))
        [fact] = [row for row in await SqliteOutbox(there).waiting(10) if row.event_type == TOOL_CALL_FINISHED]
        assert msgspec.json.decode(fact.payload, type=ToolCallFinished).tool_name == "a__b"


async def test_a_turn_that_runs_is_no_part_of_what_is_put_back_of_a_session(tmp_path: Path) -> None:
    async with open_database(tmp_path / "here.db") as here, open_database(tmp_path / "there.db") as there:
        turns, idle, copies = SqliteTurns(here, lambda _: None), SqliteJournal(here), SqliteCopies(there, "mailbox")
        first = await begin(turns, "ada", None, "first")
        await turns.finish(first, AssistantMessage("Hello"), Done(first.turn_id, DoneReason.STOP, Usage(), 1), None)
        assert await idle.idle_since(0, 9) == [first.session_id]
        ended = await idle.ended(first.session_id)
        running = await begin(turns, "ada", first.session_id, "second")

        def unit(tx: Transaction) -> SessionCopy:
            head = session_head(tx, first.session_id)
            assert head is not None
            return SessionCopy(head, 1, tuple(session_rows(tx, first.session_id)))

        await copies.merge(await here.write(unit))
        assert await idle.idle_since(0, 9) == [], "its turn puts it back"
        assert await SqliteJournal(there).idle_since(0, 9) == [first.session_id]
        again = await SqliteJournal(there).ended(first.session_id)
        assert ended is not None
        assert again is not None
        assert again.rows == ended.rows
        assert not [name for name in again.rows if running.turn_id in name]


async def test_a_turn_that_was_lost_is_ended_until_somebody_knows_better(tmp_path: Path) -> None:
    async with open_database(tmp_path / "here.db") as here, open_database(tmp_path / "there.db") as there:
        offered: list[JournalEntry] = []
        turns, copies, elsewhere = (
            SqliteTurns(here, lambda _: None),
            SqliteCopies(there, "mailbox"),
            SqliteElsewhere(there, offered.extend),
        )
        turn = await begin(turns, "ada", None, "first")

        async def copy(of: Database, version: int) -> SessionCopy:
            def unit(tx: Transaction) -> SessionCopy:
                head = session_head(tx, turn.session_id)
                assert head is not None
                return SessionCopy(head, version, tuple(session_rows(tx, turn.session_id)))

            return await of.write(unit)

        async def ended() -> list[tuple[str, str | None]]:
            rows = await there.read("SELECT status, error_code FROM turns")
            return [(status, code) for status, code in rows]

        await copies.merge(await copy(here, 1))
        assert await elsewhere.running("", 9) == [(turn.session_id, turn.turn_id)]
        assert await SqliteElsewhere(here).running("", 9) == [], "it runs there"
        assert not await SqliteElsewhere(here).end(turn.turn_id, TurnLostError())

        assert await elsewhere.end(turn.turn_id, TurnLostError())
        assert await ended() == [("failed", "TURN_LOST")]
        assert await elsewhere.running("", 9) == []
        assert not await elsewhere.end(turn.turn_id, TurnLostError()), "it is ended once"
        assert [(entry.turn_id, entry.step) for entry in offered] == [("", Step.AGAIN)]
        assert await copies.version(turn.session_id) == -1, "whatever is shared of it is read"
        supposed = await copy(there, 2)

        done = Done(turn.turn_id, DoneReason.STOP, Usage(), 1)
        await turns.finish(turn, AssistantMessage("Hello"), done, None)
        await copies.merge(await copy(here, 3))
        assert await ended() == [("done", None)]
        await copies.merge(supposed)
        assert await ended() == [("done", None)], "a turn whose end is known is not lost"
