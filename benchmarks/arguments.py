"""Numeric arguments of the benchmarks' command lines."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """An argument type: an integer that is not less than `least`."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ArgumentTypeError(f"must be {least} or more")
        return value

    return number
