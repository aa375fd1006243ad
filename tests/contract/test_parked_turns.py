"""Turns that wait for people only: parked, and given to the engine that lets them go on. On both databases."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from dialog_engine.chat.requests import StartingRequest
from dialog_engine.errors import TurnFencedError
from dialog_engine.model import ApprovalStatus, AssistantMessage, QuestionStatus, Turn
from dialog_engine.tool_calls.questions.values import Answer
from dialog_engine.tool_calls.values import Asked, Decision
from plugins_contract.messages import EVENT_TYPE, ToolCallRequested, decode_request, new_id
from plugins_contract.outcomes import ToolOutcome
from tests.marks import promise
from tests.support.engine_stores import LEASE_MS, OUTCOME, EngineStore, mailbox_of, question, requested, tool_call
from tests.support.fakes.worker import failed

APPROVED = Decision(status=ApprovalStatus.APPROVED, at=1)
REFUSED = Decision(status=ApprovalStatus.REFUSED, at=1, reason="no")
INSTEAD = Answer(QuestionStatus.DECLINED, 1)
NAMED = StartingRequest(message_id="m1")


async def asking(
    store: EngineStore, calls: int = 1, credential: str = "", expires_at: int = 2
) -> tuple[Turn, list[Asked]]:
    """A turn whose calls wait for approval."""
    turn = Turn(new_id(), new_id(), "ada", credential=credential)
    await store.turns.begin(turn, "Hello!", new_session=True)
    put = msgspec.structs.replace(question(), expires_at=expires_at)
    asked = [Asked(tool_call(), put) for _ in range(calls)]
    message = AssistantMessage("", tuple(each.call for each in asked))
    await store.calls.add_round(turn, message, [], {}, {each.call.correlation_id: put for each in asked})
    return turn, asked


def shown(asked: list[Asked]) -> dict[str, str]:
    return {each.call.correlation_id: each.question.hash for each in asked}


async def parked(
    store: EngineStore, calls: int = 1, credential: str = "", expires_at: int = 2
) -> tuple[Turn, list[Asked]]:
    turn, asked = await asking(store, calls, credential, expires_at)
    assert await store.parked.park(turn, shown(asked), 7)
    return turn, asked


def request_of(asked: Asked) -> Callable[[Turn], ToolCallRequested]:
    return lambda turn: requested(turn, asked.call)


async def owner(store: EngineStore, turn: Turn) -> tuple[str, int]:
    [row] = await store.database.read("SELECT owner, epoch FROM turns WHERE turn_id = $1", turn.turn_id)
    return row.owner, row.epoch


@promise("a turn that waits for people only is parked: no engine has it, and none adopts it")
async def test_a_parked_turn_has_no_owner_and_is_adopted_by_nobody(a: EngineStore, b: EngineStore) -> None:
    turn, _ = await parked(a)

    assert [*await a.engines.renew(LEASE_MS)] == []
    assert [*await a.engines.fenced([turn])] == [], "it is not another engine's"
    assert {each.engine_id for each in await b.engines.others()} == {"a"}
    await a.engines.release()
    assert [*await b.engines.adopt(await b.seen(a), 16)] == []
    record = await b.archive.turn("ada", turn.turn_id)
    assert (record.status, record.parked) == ("running", True)
    with pytest.raises(TurnFencedError):
        await a.approvals.close(turn, lambda _: OUTCOME)


@promise("the commit that lets a parked turn go on gives it to its engine, in a new epoch, and no other")
async def test_a_decision_gives_a_parked_turn_and_its_request_to_the_engine_that_commits_it(
    a: EngineStore, b: EngineStore
) -> None:
    turn, [asked] = await parked(a)
    await a.change("UPDATE turns SET crashes = 4 WHERE turn_id = $1", turn.turn_id)
    committed = await b.approvals.decide(turn.turn_id, asked, APPROVED, request_of(asked), None)

    assert committed is not None
    assert committed.taken is not None
    assert (committed.taken.epoch, committed.taken.rounds, committed.taken.ttft_ms) == (2, 1, 7)
    assert await owner(a, turn) == ("b", 2)
    [row] = [row for row in b.offered if row.event_type == EVENT_TYPE]
    assert decode_request(row.payload).mailbox == mailbox_of("b")
    assert await a.approvals.decide(turn.turn_id, asked, REFUSED, None, failed("no")) is None
    [crashed] = await a.engines.adopt(await a.seen(b), 16)
    assert (crashed.turn.epoch, crashed.crashes) == (3, 1), "only the crash after it went on counts"


@promise("the commit that lets a parked turn go on gives it to its engine, in a new epoch, and no other")
async def test_of_two_engines_that_decide_at_once_one_gets_the_turn(a: EngineStore, b: EngineStore) -> None:
    turn, [asked] = await parked(a)
    done = await asyncio.gather(
        a.approvals.decide(turn.turn_id, asked, APPROVED, request_of(asked), None),
        b.approvals.decide(turn.turn_id, asked, REFUSED, None, failed("no")),
        b.parked.take(turn.turn_id),
    )

    decided = {"a": done[0], "b": done[1]}
    [winner] = [name for name, committed in decided.items() if committed]
    taken = [each.taken for each in done[:2] if each and each.taken] + [each for each in done[2:] if each]
    assert [each.epoch for each in taken] == [2]
    assert await owner(a, turn) == ("b" if done[2] else winner, 2)


@promise("a turn is parked only when all its open calls wait for people who have seen what is asked")
async def test_a_turn_is_not_parked_while_anything_else_of_it_can_happen(a: EngineStore) -> None:
    turn, asked = await asking(a)
    assert not await a.parked.park(turn, {}, None), "its user was shown nothing"
    assert not await a.parked.park(turn, {asked[0].call.correlation_id: "an older question"}, None)
    running = tool_call()
    await a.add_round(turn, running)
    assert not await a.parked.park(turn, shown(asked), None), "a worker runs the other call"
    assert [*await a.parked.open_questions(turn.turn_id)] == []
    await a.calls.add_result(turn, running, OUTCOME)
    assert [*await a.parked.open_questions(turn.turn_id)] == asked
    await a.change("UPDATE turns SET stop_requested = 1 WHERE turn_id = $1", turn.turn_id)
    assert not await a.parked.park(turn, shown(asked), None), "its user has stopped it"
    assert await owner(a, turn) == ("a", 1)


@promise("nothing is parked while an engine of a release that does not know it shares the store")
@pytest.mark.parametrize("release", ["0.1.0", "0.1.7", "of a fork"])
async def test_nothing_is_parked_beside_an_engine_of_an_earlier_release(
    a: EngineStore, b: EngineStore, release: str
) -> None:
    turn, asked = await asking(a)
    await a.change("UPDATE engines SET release = $1 WHERE engine_id = 'b'", release)
    assert not await a.parked.park(turn, shown(asked), None)
    await a.change("UPDATE engines SET lease_until = 0 WHERE engine_id = 'b'")
    assert await a.parked.park(turn, shown(asked), None), "it was shut down"


@promise("nothing is parked while an engine of a release that does not know it shares the store")
async def test_an_engine_of_the_release_before_that_starts_later_adopts_a_parked_turn_with_its_questions(
    a: EngineStore, b: EngineStore
) -> None:
    turn, asked = await parked(a)
    # What 0.1.0 reads and writes, as the engine b.
    others = (
        "SELECT owner FROM turns WHERE status = 'running' AND owner <> $1"
        " AND owner NOT IN (SELECT engine_id FROM engines)"
    )
    assert [row.owner for row in await a.database.read(others, "b")] == [""]
    await a.change("UPDATE turns SET owner = 'b', epoch = epoch + 1 WHERE owner = '' AND status = 'running'")

    now = Turn(turn.turn_id, turn.session_id, "ada", epoch=2)
    assert [*(await b.archive.open_calls(now)).asked] == asked
    assert [*await a.parked.due(10**15, 16)] == []
    assert await a.parked.take(turn.turn_id) is None
    committed = await a.approvals.decide(turn.turn_id, asked[0], REFUSED, None, failed("no"))
    assert committed is not None
    assert committed.taken is None


@promise("the commit that lets a parked turn go on gives it to its engine, in a new epoch, and no other")
async def test_a_stop_gives_a_parked_turn_to_its_engine(a: EngineStore, b: EngineStore) -> None:
    turn, _ = await parked(a)
    taken = await b.turns.request_stop(turn.turn_id)

    assert isinstance(taken, Turn)
    assert (taken.epoch, await owner(a, turn)) == (2, ("b", 2))
    assert await a.turns.request_stop(turn.turn_id) == "b"
    [adopted] = await a.engines.adopt(await a.seen(b), 16)
    assert adopted.stopped, "also by an engine that takes over from it"


@promise("a parked turn goes on when its question expires, its key is revoked or its session is erased")
async def test_what_nobody_commits_is_found_by_one_look_and_taken_once(a: EngineStore, b: EngineStore) -> None:
    early, _ = await parked(a, expires_at=1_000)
    late, _ = await parked(a, 2, expires_at=2_000)

    assert [*await b.parked.due(999, 16)] == []
    assert [*await b.parked.due(1_000, 16)] == [(early.turn_id, False)]
    taken = await asyncio.gather(a.parked.take(early.turn_id), b.parked.take(early.turn_id))
    assert [each.epoch for each in taken if each] == [2]
    assert [*await b.parked.due(1_999, 16)] == []
    await a.erasures.erase("ada")
    assert [*await b.parked.due(1_999, 16)] == [(late.turn_id, True)]
    assert await b.parked.take(late.turn_id, stop=True)
    assert [row.turn_id for row in await b.engines.renew(LEASE_MS) if row.stop_requested] == [late.turn_id]


async def test_credentials_of_parked_turns_are_found_one_after_the_other(a: EngineStore) -> None:
    turns = [(await parked(a, credential=each))[0] for each in ("x", "y", "x", "", "z")]

    assert [*await a.parked.credentials("", 2)] == ["x", "y"]
    assert [*await a.parked.credentials("y", 2)] == ["z"]
    assert {*await a.parked.of_credential("x", 16)} == {turns[0].turn_id, turns[2].turn_id}
    await a.parked.take(turns[1].turn_id)
    assert [*await a.parked.credentials("", 5)] == ["x", "z"]
    backlog = await a.parked.backlog()
    assert (backlog.turns, backlog.approvals, backlog.overdue_ms > 0) == (4, 5, True)


@promise("a message may decline what a turn asks, and begins after it")
async def test_declining_refuses_everything_stops_the_turn_and_lets_the_message_be_next(
    a: EngineStore, b: EngineStore
) -> None:
    turn, asked = await parked(a, 2)
    waits = Turn(new_id(), turn.session_id, "ada")
    assert not await a.turns.begin(waits, "earlier", queue=True)
    sent = Turn(new_id(), turn.session_id, "ada")
    declined = await b.parked.decline(sent, "No, this instead.", REFUSED, INSTEAD, request=NAMED)

    assert declined is not None
    assert declined.taken is not None
    assert await owner(a, turn) == ("b", 2)
    assert [each for each, _ in declined.refused] == asked
    states = await a.approvals.states([each.call.correlation_id for each in asked])
    assert [(each.decision, _code(each.outcome)) for each in states] == [(REFUSED, "NOT_APPROVED")] * 2
    first = await a.waiting.first(turn.session_id)
    assert first is not None
    assert first.turn.turn_id == sent.turn_id
    assert [each.turn.turn_id for each in await a.waiting.of_session("ada", turn.session_id)] == [
        sent.turn_id,
        waits.turn_id,
    ]


def _code(outcome: ToolOutcome | None) -> str:
    return outcome.error.code if outcome and outcome.error else ""


async def test_there_is_nothing_to_decline_where_a_worker_runs_a_call_or_no_turn_runs(a: EngineStore) -> None:
    turn, _ = await asking(a)
    call = tool_call()
    await a.add_round(turn, call)
    sent = Turn(new_id(), turn.session_id, "ada")
    assert await a.parked.decline(sent, "No.", REFUSED, INSTEAD, request=NAMED) is None
    assert [*await a.engines.stop_requests()] == [], "nothing of it is committed"
    assert not await a.turns.begin(sent, "No.", queue=True, request=NAMED), "nor the name of the message"
    await a.end(turn)
    assert await a.parked.decline(Turn(new_id(), turn.session_id, "ada"), "No.", REFUSED, INSTEAD) is None
