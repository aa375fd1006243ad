"""See the committed calls of one round through, in this life of the turn or the next."""

from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from dialog_engine.model import CallAnswered, ChatEvent, ToolCall, Turn
from dialog_engine.tool_calls.commits import to_its_end
from dialog_engine.tool_calls.ports import CallStore, ToolCalls
from dialog_engine.tool_calls.steps import Steps
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class OpenCall:
    """A call that is committed and has no outcome yet."""

    call: ToolCall
    request: ToolCallRequested


async def see_through(
    turn: Turn,
    open_calls: Sequence[OpenCall],
    *,
    steps: Steps,
    store: CallStore,
    calls: ToolCalls,
    emit: Callable[[ChatEvent], None],
) -> dict[str, ToolOutcome]:
    """Wait for every call and commit its outcome before the user hears of it. Returns them by correlation id.

    An outcome that is being committed when this is cancelled is committed and told all the same.
    """
    by_id = {open_call.call.correlation_id: open_call.call for open_call in open_calls}
    outcomes: dict[str, ToolOutcome] = {}

    async def answered(call: ToolCall, update: CallAnswered) -> None:
        await store.add_result(turn, call, update.outcome)
        outcomes[call.correlation_id] = update.outcome
        emit(steps.update(call, update))

    async with aclosing(calls.run([open_call.request for open_call in open_calls])) as updates:
        async for update in updates:
            call = by_id[update.correlation_id]
            if isinstance(update, CallAnswered):
                await to_its_end(answered(call, update))
            else:
                emit(steps.update(call, update))
    return outcomes
