"""Errors that stop the worker from starting."""

from pathlib import Path


class PluginsMcpError(Exception):
    """Base of the worker's own errors."""


class ServersFileError(PluginsMcpError):
    """The file of MCP servers cannot be used at all. The text names the file, the place in it and what to do."""

    def __init__(self, path: Path, where: str, fix: str) -> None:
        super().__init__(f"{path}: {where}: {fix}")
        self.path = path
        self.where = where
        self.fix = fix


class SettingsError(PluginsMcpError):
    """A setting is wrong; the text names it and says what to do."""
