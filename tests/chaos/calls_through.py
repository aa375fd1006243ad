"""Tool calls as an engine makes them, without the model around them."""

import json
import time
from dataclasses import dataclass
from typing import Any

from benchmarks.pair import Parts
from dialog_engine.model import AssistantMessage, CallAnswered, ToolCall, Turn
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import new_id
from plugins_contract.outcomes import ToolOutcome
from tests.support.beginnings import begin


@dataclass(frozen=True)
class Caller:
    """One turn that makes one call after the other."""

    parts: Parts
    turn: Turn

    async def call(self, tool: ToolEntry, arguments: dict[str, Any]) -> tuple[ToolOutcome, float]:
        """One call, from its commit to the commit of its result: the outcome, and the monotonic time when it came."""
        call = ToolCall("call_1", new_id(), tool.name, json.dumps(arguments))
        request = self.parts.executor.request(self.turn, call, tool, arguments)
        await self.parts.calls.add_round(self.turn, AssistantMessage("", (call,)), [request], {})
        async for update in self.parts.executor.run([request]):
            if isinstance(update, CallAnswered):
                at = time.monotonic()
                await self.parts.calls.add_result(self.turn, call, update.outcome)
                return update.outcome, at
        raise RuntimeError("the call ended without an answer")


async def caller(parts: Parts, subject: str) -> Caller:
    return Caller(parts, await begin(parts.turns, subject, None, "a question"))
