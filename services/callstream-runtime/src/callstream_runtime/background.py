"""Short tasks that nobody waits for while a process runs, and that their owner awaits when it shuts down."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

log = logging.getLogger(__name__)


class BackgroundTasks:
    """The tasks of one owner, who must `close` it."""

    def __init__(self, close_seconds: float = 2.0) -> None:
        """`close` cancels what has not ended after `close_seconds`."""
        self._close_seconds = close_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any], name: str) -> None:
        """Run `work` in a task. Its error is logged."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            log.error("%s failed", task.get_name(), exc_info=error)

    async def close(self) -> None:
        """Wait for the tasks, those included that begin meanwhile. What has not ended in time is cancelled."""
        ends_at = asyncio.get_running_loop().time() + self._close_seconds
        while self._tasks and (left := ends_at - asyncio.get_running_loop().time()) > 0:
            await asyncio.wait(self._tasks, timeout=left)
        if late := {*self._tasks}:
            log.warning("cancelled at the shutdown: %s", ", ".join(sorted(task.get_name() for task in late)))
            for task in late:
                task.cancel()
            await asyncio.wait(late)
