"""What is made durable and then told must not be torn apart: not even by the user who stops the turn in between."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

log = logging.getLogger(__name__)

T = TypeVar("T")

END_SECONDS = 10.0
"""How long a cancellation waits at most."""


async def to_its_end(work: Coroutine[Any, Any, T]) -> T:
    """Await `work`. A cancellation that comes meanwhile is raised when `work` has ended, at most END_SECONDS later.

    For a commit with what follows from it: cancelled in between, storage and user would be told different things.
    """
    task = asyncio.create_task(work, name=work.__qualname__)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task], timeout=END_SECONDS)
        if not task.done():
            log.error("%s takes too long and is cut", task.get_name())  # noqa: TRY400 -- the cancellation is no error
            task.cancel()
        elif not task.cancelled() and (error := task.exception()):
            log.warning("%s failed while it was being cancelled: %s", task.get_name(), error)
        raise
