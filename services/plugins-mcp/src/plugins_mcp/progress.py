"""What a tool says about how far it is, on its way to the engine."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Callable

from plugins_contract.connections import is_outage
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress
from plugins_mcp.ports import CallLedger

log = logging.getLogger(__name__)

PROGRESS_SECONDS = 0.25
"""Progress is passed on at most this often."""


@contextlib.asynccontextmanager
async def passed_on(
    ledger: CallLedger, request: ToolCallRequested, fence: int
) -> AsyncGenerator[Callable[[CallProgress], None]]:
    """A sink for progress: the newest is passed on at intervals, and never holds up the call."""
    newest: list[CallProgress] = []
    arrived = asyncio.Event()

    def take(progress: CallProgress) -> None:
        newest[:] = [progress]
        arrived.set()

    async def pass_on() -> None:
        while True:
            await arrived.wait()
            arrived.clear()
            try:
                await ledger.progress(request, fence, newest[0])
            except Exception as error:
                if not is_outage(error):
                    log.exception("progress of call %s cannot be passed on", request.correlation_id)
            await asyncio.sleep(PROGRESS_SECONDS)

    work = asyncio.create_task(pass_on(), name=f"progress of {request.correlation_id}")
    try:
        yield take
    finally:
        work.cancel()
        await asyncio.wait([work])
