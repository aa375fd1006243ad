"""The file of rights, which may be replaced while a service runs."""

from pathlib import Path

from callstream_runtime.watched_file import WatchedFile
from plugins_contract.rights import Rights


def watched_rights(path: Path | None) -> WatchedFile[Rights] | None:
    """The file of rights, which may be replaced at any time; None without a file: every sender may use every tool.

    Raises:
        ValueError: it cannot be used; the text says why.
    """
    return WatchedFile(path, Rights, Rights(b"")) if path else None
