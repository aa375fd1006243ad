"""The process of the proxy: accepts connections, and takes its orders from a pipe."""

import asyncio
import signal
from multiprocessing.connection import Connection
from typing import Any, TypeAlias

from tests.chaos.faults import Break, Counts, Faults
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
