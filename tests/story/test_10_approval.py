"""Approval: a tool that needs one is not run before a person approves it. Until then no request exists."""

from dialog_engine.model import ApprovalStatus, ToolStatus
from dialog_engine.tool_calls.values import Approve, Refuse
from plugins_contract.catalog import ApprovalPolicy
from tests.support.fakes.engine import FakeEngine, steps_of
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, tool

CATALOG = FakeCatalog(tool("files__delete", approval=ApprovalPolicy.DESTRUCTIVE))
ASKS = asks(("files__delete", '{"path": "/tmp/a"}'))


async def test_the_call_waits_until_it_is_approved() -> None:
    async with FakeEngine(ScriptedModel(ASKS, says("Done.")), tools=CATALOG) as engine:
        turn = await engine.turns.start("ada", None, "Delete it.")
        step = await engine.question(turn)
        assert step.details["arguments"] == {"path": "/tmp/a"}
        assert engine.store.requests() == []
        assert engine.worker.executed == []

        await engine.decide(step.call.correlation_id, Approve(step.details["hash"]))

        assert steps_of(await engine.seen(turn))[-1] is ToolStatus.SUCCEEDED
        assert engine.worker.executed == [step.call.correlation_id]


async def test_a_person_may_refuse_and_the_model_reads_the_reason() -> None:
    model = ScriptedModel(ASKS, says("Then not."))
    async with FakeEngine(model, tools=CATALOG) as engine:
        turn = await engine.turns.start("ada", None, "Delete it.")
        step = await engine.question(turn)

        decision = await engine.decide(step.call.correlation_id, Refuse("I still need it."))

        assert decision.status is ApprovalStatus.REFUSED
        assert steps_of(await engine.seen(turn)) == [ToolStatus.PENDING, ToolStatus.REFUSED]
    assert "I still need it." in model.requests[1].messages[-1].content
    assert engine.worker.executed == []
