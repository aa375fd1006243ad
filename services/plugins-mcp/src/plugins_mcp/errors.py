"""Errors that stop the worker from starting, and errors between its parts."""

from pathlib import Path


class PluginsMcpError(Exception):
    """Base of the errors that prevent a start."""


class ServersFileError(PluginsMcpError):
    """The servers file cannot be used at all. The text names the file, the place in it and the fix."""

    def __init__(self, path: Path, where: str, fix: str) -> None:
        super().__init__(f"{path}: {where}: {fix}")
        self.path = path
        self.where = where
        self.fix = fix


class SettingsError(PluginsMcpError):
    """A setting is wrong. The text names it and the fix."""


class ServerChangedError(Exception):
    """Redis is, or may be, another server than the one at which a call was started: START there decides."""
