"""Shields a commit, together with what must follow it, from cancellation."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_DELAY_SECONDS = 10.0
"""How long a cancellation is delayed at most."""


async def run_shielded(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. A cancellation is delayed until `work` has ended, by at most MAX_DELAY_SECONDS.

    It is for a commit and the events that announce it: cancelled between the two, the user would see something else
    than what is stored.
    """
    task = asyncio.create_task(work, name=work.__qualname__)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=MAX_DELAY_SECONDS)
        if not task.done():
            log.error("%s has not ended in %g s and is cancelled", task.get_name(), MAX_DELAY_SECONDS)  # noqa: TRY400
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.warning("%s failed while it was being cancelled: %s", task.get_name(), error)
        raise
