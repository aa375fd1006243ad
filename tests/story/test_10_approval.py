"""Approval: a tool that needs one is not run before a person says so. Until then there is nothing to be sent."""

import pytest

from dialog_engine.model import ApprovalStatus, ApprovalStep, ToolStatus, TurnEvent
from dialog_engine.tool_calls.questions import Approve, Refuse
from plugins_contract.catalogue import ApprovalPolicy
from tests.support.twins import ScriptedModel, Shelf, Stage, asks, says, steps_of, tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

SHELF = Shelf(tool("files__delete", approval=ApprovalPolicy.DESTRUCTIVE))
ASKS = asks(("files__delete", '{"path": "/tmp/a"}'))


async def question(stage: Stage, turn_id: str) -> ApprovalStep:
    """What the user is asked."""

    def asked() -> list[ApprovalStep]:
        events: list[TurnEvent] = stage.logs.lives[turn_id][-1].events
        return [event for event in events if isinstance(event, ApprovalStep)]

    [step] = await wait_until(asked, what="the question")
    return step


async def test_the_call_waits_until_it_is_approved() -> None:
    async with Stage(ScriptedModel(ASKS, says("Done.")), tools=SHELF) as stage:
        turn = await stage.turns.start("ada", None, "Delete it.")
        step = await question(stage, turn.turn_id)
        assert step.details["arguments"] == {"path": "/tmp/a"}
        assert stage.store.outbox == {}
        assert stage.workshop.executed == []

        await stage.decide(step.call.correlation_id, Approve(step.details["hash"]))

        assert steps_of(await stage.seen(turn))[-1] is ToolStatus.SUCCEEDED
        assert stage.workshop.executed == [step.call.correlation_id]


async def test_a_person_may_refuse_and_the_model_is_told_why() -> None:
    model = ScriptedModel(ASKS, says("Then not."))
    async with Stage(model, tools=SHELF) as stage:
        turn = await stage.turns.start("ada", None, "Delete it.")
        step = await question(stage, turn.turn_id)

        decision = await stage.decide(step.call.correlation_id, Refuse("I still need it."))

        assert decision.status is ApprovalStatus.REFUSED
        assert steps_of(await stage.seen(turn)) == [ToolStatus.PENDING, ToolStatus.REFUSED]
    assert "I still need it." in model.requests[1].messages[-1].content
    assert stage.workshop.executed == []
