"""A configuration file that may be replaced while the program runs."""

import logging
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

log = logging.getLogger(__name__)

CHECK_SECONDS = 1.0
"""How often a file that is used is checked for a change."""

WARNING_SECONDS = 30.0
"""How long the content of a file that was deleted or broken stays in use, so that operators can repair it."""

MAX_BYTES = 2_000_000
"""The largest file that is read: it is read and parsed in the event loop. 10,000 API keys have this size."""

T = TypeVar("T")


class WatchedFile(Generic[T]):
    """The content of a file, read again when the file has changed.

    When the file is deleted or bad, that is logged, and the last good content stays in use for WARNING_SECONDS. Then
    `closed` is in use, which allows nothing, until there is a good file.

    The file is checked when the content is used, so that a file that is not used costs nothing. Replace it with a
    rename: a file that is read while it is being written is a bad one until it is complete.
    """

    def __init__(
        self, path: Path, parse: Callable[[bytes], T], closed: T, *, now: Callable[[], float] = time.monotonic
    ) -> None:
        """Read the file.

        Raises:
            ValueError: it cannot be read, or `parse` has raised this. The text names the file.
        """
        self._path = path
        self._parse = parse
        self._closed = closed
        self._bad_since: float | None = None
        self._now = now
        self._checked_at = now()
        self._stamp = stamp_of(path)
        self._content = read_file(path, parse)

    @property
    def content(self) -> T:
        """The content that is in use."""
        if (now := self._now()) - self._checked_at >= CHECK_SECONDS:
            self._checked_at = now
            self._read_if_changed()
        if self._bad_since is not None and now - self._bad_since >= WARNING_SECONDS:
            if self._content is not self._closed:
                log.error("%s has been unusable for %g s: nothing of it is in use now", self._path, WARNING_SECONDS)
            self._content = self._closed
        return self._content

    def _read_if_changed(self) -> None:
        if (stamp := stamp_of(self._path)) == self._stamp:
            return
        self._stamp = stamp
        try:
            self._content = read_file(self._path, self._parse)
        except ValueError as error:
            text = "%s; what it contained before stays in use for %g s"
            log.error(text, error, WARNING_SECONDS)  # noqa: TRY400 -- the text says it all
            if self._bad_since is None:
                self._bad_since = self._now()
        else:
            self._bad_since = None
            log.info("%s has changed and was read again", self._path)


def read_file(path: Path, parse: Callable[[bytes], T]) -> T:
    """The content of a file.

    Raises:
        ValueError: it cannot be read, or `parse` has raised this. The text names the file.
    """
    try:
        return parse(_read_regular(path))
    except OSError as error:
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except RecursionError:
        raise ValueError(f"{path}: is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def _read_regular(path: Path) -> bytes:
    """The bytes of a regular file. Others, such as a named pipe, may block the reader or have no end."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError("is not a regular file: replace it with one")
    with path.open("rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ValueError(f"has more than {MAX_BYTES:,} bytes: make it shorter")
    return data


def stamp_of(path: Path) -> tuple[int, int, int] | None:
    """Differs after a change; None when there is no file. It follows the links by which Kubernetes replaces files."""
    try:
        found = os.stat(path)  # noqa: PTH116 -- less than half the time of Path.stat
    except OSError:
        return None
    return found.st_mtime_ns, found.st_ino, found.st_size
