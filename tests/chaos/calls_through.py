"""Tool calls as an engine makes them, without the model around them."""

import json
import time
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

from benchmarks.pair import Parts
from dialog_engine.model import AssistantMessage, CallAnswered, CallUpdate, ToolCall, Turn
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import ToolCallRequested, new_id
from plugins_contract.outcomes import ToolOutcome
from tests.support.beginnings import begin


@dataclass(frozen=True)
class AnsweredCall:
    """A call and the outcome that its caller received.

    It came `seconds` after the call was committed, at the monotonic time `at`.
    """

    request: ToolCallRequested
    outcome: ToolOutcome
    seconds: float
    at: float
    stopped: bool


class Caller:
    """One turn that makes one call after the other."""

    def __init__(self, parts: Parts, turn: Turn) -> None:
        self._parts = parts
        self._turn = turn

    async def call(
        self, tool: ToolEntry, arguments: dict[str, Any], *, stop_at: type[CallUpdate] | None = None
    ) -> AnsweredCall:
        """One call, from its commit to the commit of its result. `stop_at`: the user stops it at that update."""
        call = ToolCall("call_1", new_id(), tool.name, json.dumps(arguments))
        request = self._parts.executor.request(self._turn, call, tool, arguments)
        await self._parts.calls.add_round(self._turn, AssistantMessage("", (call,)), [request], {})
        begun = time.monotonic()
        outcome = await self._see_through(request, stop_at)
        stopped = outcome is None
        if outcome is None:
            outcome = (await self._parts.executor.cancel([request]))[request.correlation_id]
        at = time.monotonic()
        await self._parts.calls.add_result(self._turn, call, outcome)
        return AnsweredCall(request, outcome, at - begun, at, stopped)

    async def _see_through(self, request: ToolCallRequested, stop_at: type[CallUpdate] | None) -> ToolOutcome | None:
        async with aclosing(self._parts.executor.run([request])) as updates:
            async for update in updates:
                if isinstance(update, CallAnswered):
                    return update.outcome
                if stop_at is not None and isinstance(update, stop_at):
                    return None
        raise RuntimeError("the call ended without an answer")


async def caller(parts: Parts, subject: str) -> Caller:
    """A caller with a turn of its own."""
    return Caller(parts, await begin(parts.turns, subject, None, "a question"))
