"""A file system of a few megabytes that can be filled to its last byte: a real one, in memory."""

import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from tests.chaos.report import UnableHereError

MEGABYTE = 1 << 20


class SmallDisk:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (64 << 10, 1):
                try:
                    while ballast.write(b"x" * size):
                        pass
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, megabytes: int = 4) -> Generator[SmallDisk]:
    """A small disk at `path`, which is made, for as long as the block.

    Raises:
        UnableHereError: it cannot be mounted; see `may_mount`.
    """
    path.mkdir()
    options = ["-o", f"size={megabytes * MEGABYTE},mode=0777", "callstream-test", str(path)]
    done = subprocess.run(["mount", "-t", "tmpfs", *options], capture_output=True, text=True, check=False)
    if done.returncode:
        raise UnableHereError(f"a small disk cannot be mounted: {done.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def mounting(argv: list[str]) -> list[str]:
    """The command, such that it may mount: as it is for root, and else in name spaces of its own.

    Raises:
        UnableHereError: nothing of that can be had here.
    """
    if not sys.platform.startswith("linux"):
        raise UnableHereError("small disks are mounted on Linux only")
    if os.geteuid() == 0:
        return argv
    apart = ["unshare", "--user", "--map-root-user", "--mount"]
    if not shutil.which("unshare") or subprocess.run([*apart, "true"], capture_output=True, check=False).returncode:
        raise UnableHereError("small disks need root, or name spaces that a user may make")
    return [*apart, *argv]
