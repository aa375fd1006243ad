"""Turns of an engine whose calls wait for a person, and the person who approves them."""

import asyncio
import time
from collections.abc import Sequence

from benchmarks.pair import Parts
from dialog_engine.model import ApprovalStatus, AssistantMessage, ToolCall, Turn
from dialog_engine.storage.approvals import SqlApprovals
from dialog_engine.storage.parked import SqlParked
from dialog_engine.tool_calls.approvals.rules import question_for
from dialog_engine.tool_calls.values import Asked, Decision
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import ToolCallRequested, new_id
from tests.support.beginnings import begin

SUBJECTS = 50
"""Their turns belong to so many subjects, so that the limits of none hold calls back."""
AT_ONCE = 16
DAY_MS = 86_400_000


def now_ms() -> int:
    return time.time_ns() // 1_000_000


async def park(parts: Parts, tool: ToolEntry, count: int) -> list[tuple[Turn, Asked]]:
    """So many parked turns, each with one call of the tool that waits for approval."""
    return [await _parked(parts, tool, f"asked {number % SUBJECTS}") for number in range(count)]


async def _parked(parts: Parts, tool: ToolEntry, subject: str) -> tuple[Turn, Asked]:
    turn = await begin(parts.turns, subject, None, "a question")
    call = ToolCall("call_1", new_id(), tool.name, "{}")
    question = question_for(tool, {"text": "hello"}, now_ms(), DAY_MS)
    await parts.calls.add_round(turn, AssistantMessage("", (call,)), [], {}, {call.correlation_id: question})
    if not await SqlParked(parts.store).park(turn, {call.correlation_id: question.hash}, None):
        raise RuntimeError(f"turn {turn.turn_id} is not parked")
    return turn, Asked(call, question)


async def approve(parts: Parts, tool: ToolEntry, turns: Sequence[tuple[Turn, Asked]]) -> None:
    """Approve all of them at this engine, a few at a time."""
    approvals, hands = SqlApprovals(parts.store), asyncio.Semaphore(AT_ONCE)

    async def decide(turn: Turn, asked: Asked) -> None:
        def request(turn: Turn) -> ToolCallRequested:
            return parts.executor.request(turn, asked.call, tool, asked.question.arguments, turn.subject)

        decision = Decision(status=ApprovalStatus.APPROVED, at=now_ms())
        async with hands:
            committed = await approvals.decide(turn.turn_id, asked, decision, request, None)
        if not (committed and committed.taken):
            raise RuntimeError(f"turn {turn.turn_id} was not taken up by its approval")

    await asyncio.gather(*(decide(*each) for each in turns))
