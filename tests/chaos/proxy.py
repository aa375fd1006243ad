"""A TCP proxy that breaks what passes through it, on command of a test.

It runs in a process of its own, so that neither a busy test nor a busy proxy slows the other down. In front of Redis it
knows where commands and replies begin and end: it counts them, and it can lose exactly one reply. A reply is lost as
TCP loses it: the server has executed the command, and the connection breaks before the answer arrives.
"""

import asyncio
import multiprocessing
import signal
from collections.abc import Generator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, Self, TypeAlias

from deploy.local.ports import free_port
from tests.chaos.faults import NO_FAULTS, Break, Counts, Faults
from tests.chaos.links import Books, Link, Side

Pipe: TypeAlias = "Connection[Any, Any]"
Question = Faults | Break | None


def serve(pipe: Pipe, server_port: int, port: int, redis: bool, seed: int) -> None:
    """Be the proxy, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test, which closes the pipe
    asyncio.run(_Listener(Books(redis, seed), server_port, port).run(pipe))


class _Listener:
    def __init__(self, books: Books, server_port: int, port: int) -> None:
        self._books = books
        self._server_port = server_port
        self._port = port
        self._server: asyncio.Server | None = None

    async def run(self, pipe: Pipe) -> None:
        """Accept connections and carry out commands."""
        loop = asyncio.get_running_loop()
        questions: asyncio.Queue[Question | EOFError] = asyncio.Queue()

        def read() -> None:
            try:
                questions.put_nowait(pipe.recv())
            except (EOFError, OSError):
                loop.remove_reader(pipe.fileno())
                questions.put_nowait(EOFError())

        await self._listen()
        loop.add_reader(pipe.fileno(), read)
        pipe.send(None)
        while not isinstance(question := await questions.get(), EOFError):
            pipe.send(await self._answer(question))

    async def _answer(self, question: Question) -> Counts:
        match question:
            case Faults() as faults:
                await self._refuse() if faults.refuse else await self._listen()
                self._books.set(faults)
            case Break():
                for link in list(self._books.links):
                    link.abort()
            case None:
                pass
        return self._books.counts()

    async def _listen(self) -> None:
        if self._server is None:
            loop = asyncio.get_running_loop()
            self._server = await loop.create_server(self._accept, "127.0.0.1", self._port, backlog=1024)

    async def _refuse(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def _accept(self) -> Side:
        return Link(self._books, self._server_port).client


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
