"""What a child process writes to its standard error: read so that it never blocks, and its end kept for diagnosis."""

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import TextIO

_CHUNK = 64 * 1024


class StderrTail:
    """The last bytes that one child wrote. Used once per start of the child."""

    def __init__(self, limit: int = 2048) -> None:
        self._limit = limit
        self._kept = b""

    def text(self) -> str:
        """The end of what was written, on one line; empty when there was nothing."""
        lines = self._kept.decode("utf-8", "replace").split("\n")
        if len(self._kept) == self._limit:
            del lines[0]  # it was cut somewhere in its middle
        return " | ".join(line.strip() for line in lines[-6:] if line.strip())

    @contextmanager
    def opened(self) -> Generator[TextIO]:
        """A file that a child process can have as its standard error (it needs a real descriptor)."""
        loop = asyncio.get_running_loop()
        reading, writing = os.pipe()
        os.set_blocking(reading, False)

        def drain() -> None:
            with suppress(BlockingIOError):
                chunk = os.read(reading, _CHUNK)
                self._kept = (self._kept + chunk)[-self._limit :]
                if not chunk:
                    loop.remove_reader(reading)

        loop.add_reader(reading, drain)
        try:
            with open(writing, "w", encoding="utf-8") as file:  # noqa: PTH123 - a descriptor, not a path
                yield file
        finally:
            drain()
            loop.remove_reader(reading)
            os.close(reading)
