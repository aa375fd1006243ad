"""Numbers on a benchmark's command line."""

from argparse import ArgumentTypeError
from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """The type of an argument that is a number, and not less than that."""

    def number(text: str) -> int:
        value = int(text)
        if value < least:
            raise ArgumentTypeError(f"must be {least} or more")
        return value

    return number
