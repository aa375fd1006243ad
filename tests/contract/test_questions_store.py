"""Questions of servers in the store: one answer of several, a message in their place, and what engines look for."""

import pytest

from dialog_engine.errors import TurnFencedError
from dialog_engine.model import ApprovalStatus, QuestionStatus, Turn
from dialog_engine.tool_calls.questions.values import Answer, AskedRound, Asking
from dialog_engine.tool_calls.values import Decision
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import new_id
from plugins_contract.questions import InputRequired, QuestionKind, ServerQuestion
from tests.marks import promise
from tests.support.engine_stores import EngineStore, mailbox_of, requested, tool_call

FORM = ServerQuestion("when", QuestionKind.FORM, "When?", form={"type": "object", "properties": {}})
DECLINED = Answer(QuestionStatus.DECLINED, 5, reason="no")
REFUSED = Decision(status=ApprovalStatus.REFUSED, at=5, reason="no")


async def parked(store: EngineStore, expires_at: int = 2) -> tuple[Turn, AskedRound]:
    """A parked turn whose server asks two questions."""
    turn, call = Turn(new_id(), new_id(), "ada", roles=("user",)), tool_call()
    await store.turns.begin(turn, "Hello!", new_session=True)
    await store.add_round(turn, call)
    made: list[Asking] = []

    def make(sent: str) -> Asking:
        made.append(Asking("demo", "add", InputRequired((FORM, FORM), "state"), sent, 1, expires_at))
        return made[-1]

    await store.questions.ask(turn, call, requested(turn, call, mailbox_of(store.engine_id)), make)
    assert await store.parked.park(turn, {call.correlation_id: "0"}, None)
    return turn, AskedRound(call, 1, made[-1])


async def test_an_engine_that_has_lost_the_turn_asks_nothing(a: EngineStore, b: EngineStore) -> None:
    turn, _ = await parked(a)
    taken = await b.parked.take(turn.turn_id)
    assert taken is not None
    call = tool_call()
    await b.add_round(taken, call)
    asking = Asking("demo", "add", InputRequired((FORM,), "state"), "", 1, 2)
    with pytest.raises(TurnFencedError):
        await a.questions.ask(turn, call, requested(turn, call, mailbox_of(b.engine_id)), lambda _: asking)


@promise("one answer of several is shown at once, to every reader and after a reload")
async def test_one_answer_of_two_takes_a_parked_turn_up(a: EngineStore, b: EngineStore) -> None:
    turn, asked = await parked(a)
    committed = await b.questions.answer(turn.turn_id, asked, {1: DECLINED}, None, None)

    assert committed is not None
    assert committed.taken is not None
    assert committed.taken.epoch == 2
    [now] = (await b.archive.open_calls(committed.taken)).rounds
    assert now.answers == {1: DECLINED}
    assert not await b.parked.park(committed.taken, {asked.id: "0"}, None), "its readers have not seen it"
    assert await b.parked.park(committed.taken, {asked.id: "1"}, None)
    assert await a.questions.answer(turn.turn_id, asked, {1: DECLINED}, None, None) is None, "it has changed"


@promise("Stop, an expiry, a lost right and a removed tool withdraw a server's question, and say why")
async def test_the_questions_of_parked_turns_are_found_one_after_the_other(a: EngineStore, b: EngineStore) -> None:
    first, second = sorted([await parked(a), await parked(a)], key=lambda each: each[1].call.correlation_id)
    [found] = await b.questions.parked("", 1)
    assert (found.turn_id, found.tool_name, found.subject, found.roles) == (
        first[0].turn_id,
        "demo__add",
        "ada",
        ("user",),
    )
    assert [each.turn_id for each in await b.questions.parked(found.correlation_id, 5)] == [second[0].turn_id]
    await b.parked.take(first[0].turn_id)
    assert [each.turn_id for each in await b.questions.parked("", 5)] == [second[0].turn_id]
    backlog = await a.parked.backlog()
    assert (backlog.turns, backlog.questions, backlog.overdue_ms > 0) == (1, 2, True)


@promise("a message may decline what a turn asks, and begins after it")
async def test_a_message_declines_the_questions(a: EngineStore, b: EngineStore) -> None:
    turn, asked = await parked(a)
    sent = Turn(new_id(), turn.session_id, "ada")
    declined = await b.parked.decline(sent, "No, this instead.", REFUSED, DECLINED)

    assert declined is not None
    [(ended, outcome)] = declined.rounds
    assert ended.answers == {1: DECLINED, 2: DECLINED}
    assert outcome.error is not None
    assert (outcome.error.code, outcome.error.message.startswith("no while")) == (ErrorCode.CANCELLED, True)
    state = await a.questions.state(asked)
    assert state is not None
    assert (state.asked.answers, state.outcome, state.request) == (ended.answers, outcome, None)
    assert (await a.parked.backlog()).questions == 0


async def test_a_question_that_has_expired_is_overdue_also_where_its_turn_is_not_parked(
    a: EngineStore, b: EngineStore
) -> None:
    turn, _ = await parked(a, expires_at=10**15)
    assert (await a.parked.backlog()).overdue_ms == 0
    late, _ = await parked(a)
    await b.parked.take(late.turn_id)
    assert (await a.parked.backlog()).overdue_ms > 0
    assert await b.parked.take(turn.turn_id)
