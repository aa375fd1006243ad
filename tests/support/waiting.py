"""Waiting by condition with a bound: the only waiting that tests do."""

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable
from typing import Any, TypeVar

import anyio

T = TypeVar("T")

POLL_SECONDS = 0.01
SELDOM_SECONDS = 0.03
"""The pause between two looks grows to this in a tenth of a second: to look at an engine takes 3 ms of its time."""
TEST_SECONDS = 30.0
"""How long to wait for what takes moments on a machine that does nothing else. No bound of the product: a test of one
says its seconds."""


async def wait_until(
    condition: Callable[[], Awaitable[T]] | Callable[[], T],
    timeout: float = TEST_SECONDS,
    *,
    what: str = "the condition",
    every: float | None = None,
) -> T:
    """Ask until the answer is truthy, and return it. `timeout` is in seconds, and so is `every`, the pause between,
    which else grows.

    Raises:
        TimeoutError: it was not within `timeout` seconds; the message carries `what` and the last answer.
    """
    ends_at, pause = time.monotonic() + timeout, every or POLL_SECONDS
    while True:
        answer: Any = condition()
        value: T = await answer if isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{what} did not hold within {timeout} s; last answer: {value!r}")
        await anyio.sleep(pause)
        pause = every or min(pause * 1.2, SELDOM_SECONDS)


async def wait_until_is(ask: Callable[[], Awaitable[T]], expected: T, *, what: str = "the answer") -> None:
    """Ask until the answer is the expected one.

    Raises:
        TimeoutError: see `wait_until`.
    """

    async def is_expected() -> bool:
        return await ask() == expected

    await wait_until(is_expected, what=f"{what} {expected!r}")


def wait_until_blocking(condition: Callable[[], T], timeout: float = TEST_SECONDS, *, what: str = "the condition") -> T:
    """The same outside an event loop."""
    ends_at = time.monotonic() + timeout
    while True:
        if value := condition():
            return value
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{what} did not hold within {timeout} s; last answer: {value!r}")
        time.sleep(POLL_SECONDS)


def comes(condition: Callable[[], object], seconds: float) -> bool:
    """Whether it holds within so many seconds. Blocking."""
    with suppress(TimeoutError):
        wait_until_blocking(condition, seconds)
        return True
    return False


async def stays(condition: Callable[[], Awaitable[object]] | Callable[[], object], seconds: float) -> None:
    """Ask for `seconds`, and raise AssertionError as soon as the answer is not truthy: for what must not happen."""
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        answer: Any = condition()
        assert await answer if isawaitable(answer) else answer, "the condition did not stay"
        await anyio.sleep(POLL_SECONDS)
