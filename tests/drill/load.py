"""The users of the drill: who only chat, and who call a tool that may run only once."""

import http.client
import threading
import time
import urllib.request
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress

from tests.support.compose import Stack

USERS = {f"user{number}": f"a-key-of-user-{number}-for-tests" for number in range(4)}
"""Their keys, by name."""
FLOODER = {"flooder": "a-key-of-the-flooder-for-tests"}
PAUSE_SECONDS = 0.5
FAILURES = (OSError, http.client.HTTPException)


class Load:
    """Users who ask again as soon as they are answered. All times are seconds."""

    def __init__(self, stack: Stack, callers: int) -> None:
        """Two users chat, and so many others call a tool."""
        self._stack = stack
        self._over = threading.Event()
        self._keys = list(USERS.values())
        self.name = f"d{uuid.uuid4().hex[:8]}u"
        """What the tokens of its calls begin with."""
        self.answers: list[float] = []
        """How long each chat without tools waited for its first text, or for being refused."""
        self.refused = 0
        """Chats without tools that were refused or cut off, and calls whose turn was."""
        self.unfinished: list[str] = []
        """The tokens of calls whose turn was accepted, and did not end."""
        users = [(self._chat, 2), (self._call, callers)]
        self._threads = [
            threading.Thread(target=user, args=(number,), daemon=True)
            for user, count in users
            for number in range(count)
        ]

    @contextmanager
    def running(self) -> Generator[None]:
        """For as long as the block; it ends when the last turns do."""
        with threads_running(self._threads, self._over):
            yield

    def _chat(self, user: int) -> None:
        key = self._keys[user % len(self._keys)]
        while not self._over.wait(PAUSE_SECONDS):
            began = time.monotonic()
            try:
                request = self._stack.request("/v1/chat", {"message": "hello"}, key=key)
                with urllib.request.urlopen(request, timeout=60) as response:  # noqa: S310
                    first = next((line for line in response if line.startswith(b"event: text")), b"")
                    self.answers.append(time.monotonic() - began)
                    self.refused += not first
                    response.read()
            except FAILURES:
                self.answers.append(time.monotonic() - began)
                self.refused += 1

    def _call(self, user: int) -> None:
        number = 0
        while not self._over.wait(PAUSE_SECONDS):
            number += 1
            token = f"{self.name}{user}n{number}"
            try:
                events = self._stack.chat_through_failures(
                    f"Increment the counter, answering after 1 seconds, with token {token}",
                    key=self._keys[user % len(self._keys)],
                )
            except FAILURES:
                self.refused += 1
                continue
            if not events or events[-1][0] != "done":
                self.unfinished.append(token)


@contextmanager
def threads_running(threads: list[threading.Thread], over: threading.Event) -> Generator[None]:
    """For as long as the block. `over` is set at its end, and the threads end then."""
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        over.set()
        for thread in threads:
            thread.join(120)


@contextmanager
def flood(stack: Stack) -> Generator[None]:
    """One user, who asks twenty times a second and waits for no answer, for as long as the block."""
    over = threading.Event()
    [key] = FLOODER.values()

    def ask() -> None:
        while not over.wait(0.3):
            with suppress(*FAILURES):
                urllib.request.urlopen(stack.request("/v1/chat", {"message": "hello"}, key=key), timeout=60).close()  # noqa: S310

    with threads_running([threading.Thread(target=ask, daemon=True) for _ in range(8)], over):
        yield
