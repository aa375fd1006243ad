"""Tools that the engine answers itself, without a worker.

To add one, write a class with `entry`, made by `local_entry`, and `answer`, and pass an instance of it to
`standard_pipeline(local=...)` in wiring. Everything else is as with any other tool: the model is offered it beside the
tools of the catalog, the arguments are validated before `answer` gets them, the user sees the steps of the call, and
the outcome is stored. The one difference is that message, call and outcome are committed together, so that such a call
is never open, and never has to be resumed after a crash.
"""

import asyncio
import logging
import re
import time
from typing import Any, Protocol

import msgspec

from dialog_engine.model import Turn
from dialog_engine.tool_calls.ports import OWN_SERVER
from dialog_engine.tool_calls.values import Runnable, Unrunnable
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ExecutionClass
from plugins_contract.outcomes import CallState, ToolOutcome

log = logging.getLogger(__name__)

ANSWER_SECONDS = 10.0
"""How long an answer may take. The round is committed, and shown, after it."""

_NAME = re.compile(r"(?!.*__)[a-z][a-z_]{0,38}[a-z]")
# No name in the catalog looks like this: those have a double underscore, or are cut to 64 characters.


class LocalTool(Protocol):
    """One tool of the engine's own."""

    seconds: float = ANSWER_SECONDS
    """How long an answer may take."""

    @property
    def entry(self) -> ToolEntry:
        """The definition that the model is offered. It never changes."""
        ...

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        """The outcome of a call with valid arguments.

        It must be safe to call again, because after a crash before the commit the model makes the call once more. An
        exception, or a timeout after `seconds`, becomes a failure of this call.
        """
        ...


def local_entry(name: str, description: str, input_schema: dict[str, Any], *, title: str | None = None) -> ToolEntry:
    """The entry of a local tool.

    Raises:
        ValueError: a tool of the catalog could have the same name.
    """
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"{name!r} cannot be the name of a local tool: use a-z and single underscores, 2 to 40 characters"
        )
    return ToolEntry(
        name=name,
        server=OWN_SERVER,
        tool=name,
        title=title,
        description=description,
        input_schema=input_schema,
        annotations={"readOnlyHint": True},
        execution_class=ExecutionClass.REPEATABLE,
    )


async def answered(tool: LocalTool, turn: Turn, plan: Runnable, seconds: float | None = None) -> Unrunnable:
    """The call of that tool with its outcome, a failure when there is none within `seconds`, by default its own."""
    started = time.monotonic()
    outcome = await _outcome(tool, turn, plan.arguments, seconds or tool.seconds)
    took = round((time.monotonic() - started) * 1000)
    return Unrunnable(plan.call, msgspec.structs.replace(outcome, duration_ms=took, attempts=1), plan.tool)


async def _outcome(tool: LocalTool, turn: Turn, arguments: dict[str, Any], seconds: float) -> ToolOutcome:
    name = tool.entry.name
    try:
        async with asyncio.timeout(seconds):
            return await tool.answer(turn, arguments)
    except TimeoutError:
        message = f"{name} had no answer within {seconds:g} seconds"
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.TIMEOUT, message)
    except Exception:
        log.exception("local tool %s failed in turn %s", name, turn.turn_id)
        return ToolOutcome.failure(CallState.FAILED, ErrorCode.UNKNOWN_ERROR, f"{name} failed, for an internal reason")
