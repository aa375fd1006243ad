"""What is counted, and under which names. Every metric that is declared is counted here or at the scrape."""

import logging
import time

import pytest

from dialog_engine.chat.service import Draft
from dialog_engine.errors import LLMRateLimitedError
from dialog_engine.model import (
    ApprovalStatus,
    ApprovalStep,
    AssistantMessage,
    Done,
    DoneReason,
    MessageFinished,
    TextDelta,
    ToolCall,
    ToolStatus,
    ToolStep,
    Turn,
    Usage,
)
from dialog_engine.observe.metrics import Metrics
from dialog_engine.observe.observed import NOT_RUN, ObservedLogs, ObservedModel
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine
from tests.support.fakes.logs import MemoryLogs
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, tool

TURN = Turn("turn", "session", "ann")


def value(metrics: Metrics, name: str, **labels: str) -> float | None:
    return metrics.registry.get_sample_value(name, labels)


def step(status: ToolStatus, server: str = "demo", name: str = "demo__add") -> ToolStep:
    return ToolStep(status, ToolCall("call_1", "id", name, "{}"), server, 1)


async def test_turns_are_counted_by_their_end_and_while_they_run() -> None:
    metrics, logs = Metrics(), MemoryLogs()
    log = ObservedLogs(logs, metrics).open(TURN)
    assert value(metrics, "dialog_turns_running") == 1
    log.append(MessageFinished(1, AssistantMessage("Hi")))
    log.append(Done("turn", DoneReason.MAX_ROUNDS, Usage(), None))
    await log.close()
    assert value(metrics, "dialog_turns_running") == 0
    assert value(metrics, "dialog_turns_total", reason="max_rounds") == 1
    assert len(logs.lives["turn"][0].events) == 2


async def test_tool_calls_are_counted_by_tool_and_end_and_names_that_a_model_makes_up_are_not() -> None:
    metrics = Metrics()
    log = ObservedLogs(MemoryLogs(), metrics).open(TURN)
    for status in (ToolStatus.PENDING, ToolStatus.QUEUED, ToolStatus.RUNNING, ToolStatus.PROGRESS, ToolStatus.UNKNOWN):
        log.append(step(status))
    assert value(metrics, "dialog_tool_calls_total", tool="demo__add", status="unknown") == 1
    for n in range(100):
        log.append(step(ToolStatus.FAILED, server="", name=f"made_up_{n}"))
    assert value(metrics, "dialog_tool_calls_total", tool=NOT_RUN, status="failed") == 100
    assert b"made_up" not in metrics.text()[0]


async def test_a_failed_or_abandoned_request_is_counted_as_such() -> None:
    metrics = Metrics()
    observer = ObservedModel(metrics, "openai:x")
    with pytest.raises(LLMRateLimitedError), observer.request(TURN):
        raise LLMRateLimitedError("slow down")
    with pytest.raises(GeneratorExit), observer.request(TURN):
        raise GeneratorExit
    assert value(metrics, "dialog_llm_requests_total", outcome="MODEL_RATE_LIMITED", model="openai:x") == 1
    assert value(metrics, "dialog_llm_requests_total", outcome="abandoned", model="openai:x") == 1


async def test_the_time_to_the_first_token_is_a_part_of_the_total_time_of_the_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    draft = Draft(started=time.monotonic() - 9)  # its log is opened later, when the message is committed
    log = ObservedLogs(MemoryLogs(), Metrics()).open(TURN)
    draft.follow(TextDelta("Hi"))
    log.append(draft.done(TURN.turn_id, DoneReason.STOP))
    assert 9000 <= caplog.records[-1].firstTokenMs <= caplog.records[-1].totalMs  # type: ignore[attr-defined]


@promise("every refused request and every refused call has a line with its subject")
async def test_a_call_that_is_refused_before_it_is_requested_has_its_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    model = ScriptedModel(asks(("x" * 1000, ""), ("a__b", "")), says("Done."))
    async with FakeEngine(model, tools=FakeCatalog(tool("a__b"))) as engine:
        turn = await engine.turns.start("ann", None, "Hi")
        await engine.seen(turn)

    [line] = [record for record in caplog.records if record.getMessage() == "tool call refused"]
    found = {name: getattr(line, name) for name in ("turnId", "sessionId", "subject", "code", "toolName")}
    assert found == {
        "turnId": turn.turn_id,
        "sessionId": turn.session_id,
        "subject": "ann",
        "code": "TOOL_NOT_FOUND",
        "toolName": "x" * 200,
    }


async def test_an_approval_is_logged_with_the_ids_of_its_call_and_without_its_arguments(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    log = ObservedLogs(MemoryLogs(), Metrics()).open(TURN)
    call = ToolCall("call_1", "c-1", "demo__delete_everything", '{"what": "my secret"}')
    for status in (ApprovalStatus.ASKED, ApprovalStatus.EDITED):
        log.append(ApprovalStep(status, call, "demo", 1, {"arguments": {"what": "my secret"}}))
    await log.close()

    asked, decided = [vars(record) for record in caplog.records if record.name == "dialog_engine.calls"]
    assert asked["message"] == "tool call waits for approval"
    assert (decided["message"], decided["decision"]) == ("tool call approval decided", "edited")
    ids = {"correlationId": "c-1", "turnId": "turn", "sessionId": "session", "toolName": "demo__delete_everything"}
    assert ids.items() <= asked.items()
    assert ids.items() <= decided.items()
    assert "secret" not in repr([asked, decided])
