"""A TCP proxy that breaks what passes through it, on command of a test.

It runs in a process of its own, so that neither a busy test nor a busy proxy slows the other down. In front of Redis it
knows where commands and replies begin and end: it counts them, and it can lose exactly one reply. A reply is lost as
TCP loses it: the server has executed the command, and the connection breaks before the answer arrives.
"""

import multiprocessing
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Self

from deploy.local.ports import free_port
from tests.chaos.faults import NO_FAULTS, Break, Counts, Faults
from tests.chaos.proxy_process import Pipe, serve

START_SECONDS = 20.0
ANSWER_SECONDS = 10.0


class Proxy:
    """In front of the server on a port of 127.0.0.1; listens on a port of its own for as long as the context is open.

    Each method returns when the proxy has done it.
    """

    def __init__(self, server_port: int, *, redis: bool = True, seed: int = 1) -> None:
        """With `redis` false the bytes are not looked into: any protocol may pass, and no reply can be lost.

        `seed` decides which replies a share means.
        """
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        context = multiprocessing.get_context("spawn")
        self._pipe: Pipe
        self._theirs: Pipe
        self._pipe, self._theirs = context.Pipe()
        options = (self._theirs, server_port, self.port, redis, seed)
        self._process = context.Process(target=serve, args=options, daemon=True)

    def __enter__(self) -> Self:
        self._process.start()
        self._theirs.close()
        self._receive(START_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()  # it ends with its pipe
        self._process.join(ANSWER_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def set(self, faults: Faults) -> None:
        self._ask(faults)

    def clear(self) -> None:
        """No faults any more; what was held is let go."""
        self.set(NO_FAULTS)

    @contextmanager
    def broken(self, faults: Faults) -> Generator[None]:
        self.set(faults)
        try:
            yield
        finally:
            self.clear()

    def cut(self) -> None:
        """Break all open connections at once, on both sides (RST), and drop what was under way or held."""
        self._ask(Break())

    def counts(self) -> Counts:
        counts: Counts = self._ask(None)
        return counts

    def _ask(self, question: Faults | Break | None) -> Any:
        self._pipe.send(question)
        return self._receive(ANSWER_SECONDS)

    def _receive(self, seconds: float) -> Any:
        if not self._pipe.poll(seconds):
            raise TimeoutError("the proxy does not answer")
        return self._pipe.recv()
