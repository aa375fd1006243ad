"""The users of the drill: who only chat, and who call a tool that may run only once."""

import http.client
import threading
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Generator
from contextlib import contextmanager, suppress

from tests.support.compose import Stack

USERS = {f"user{number}": f"a-key-of-user-{number}-for-tests" for number in range(4)}
"""Their keys, by name."""
FLOODER = {"flooder": "a-key-of-the-flooder-for-tests"}
PAUSE_SECONDS, AGAIN_SECONDS = 0.5, 0.1
"""Between two messages of a user, and after a connection that was refused."""
FAILURES = (OSError, http.client.HTTPException)
UNAVAILABLE = 503


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
        self.requests = 0
        self.unavailable = 0
        """Of all requests, those that got 503."""
        self.unconnected: list[float] = []
        """For how long each user who had no connection, or lost it before the first text, had none."""
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
        with threads_running(self._threads, self._over):
            yield

    def _chat(self, user: int) -> None:
        key, since = self._keys[user % len(self._keys)], 0.0
        while not self._over.wait(AGAIN_SECONDS if since else PAUSE_SECONDS):
            began, served = time.monotonic(), True
            try:
                with self._counted(), self._open(key) as response:
                    served = any(line.startswith(b"event: text") for line in response)
                    self.answers.append(time.monotonic() - began)
                    self.refused += not served
                    response.read()
            except FAILURES as error:
                served = isinstance(error, urllib.error.HTTPError) and error.code == UNAVAILABLE
                self.answers.append(time.monotonic() - began)
                self.refused += 1
            if served and since:
                self.unconnected.append(time.monotonic() - since)
            since = 0.0 if served else since or began

    def _open(self, key: str) -> http.client.HTTPResponse:
        return urllib.request.urlopen(self._stack.request("/v1/chat", {"message": "hello"}, key=key), timeout=60)  # noqa: S310

    @contextmanager
    def _counted(self) -> Generator[None]:
        self.requests += 1
        try:
            yield
        except urllib.error.HTTPError as error:
            self.unavailable += error.code == UNAVAILABLE
            raise

    def _call(self, user: int) -> None:
        number = 0
        while not self._over.wait(PAUSE_SECONDS):
            number += 1
            token = f"{self.name}{user}n{number}"
            try:
                with self._counted():
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
