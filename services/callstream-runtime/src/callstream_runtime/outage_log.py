"""Logs an outage once when it begins and once when it ends, however often it is met."""

import logging


class OutageLog:
    """The outages of one thing that a component needs, such as the store."""

    def __init__(self, log: logging.Logger, what: str) -> None:
        """`what` completes "… is unavailable" and "… is available again"."""
        self._log = log
        self._what = what
        self._out = False

    def failed(self, error: Exception) -> None:
        """It was needed and not available."""
        if not self._out:
            self._log.warning("%s is unavailable: %s", self._what, error)
        self._out = True

    def worked(self) -> None:
        """It was needed and available."""
        if self._out:
            self._log.info("%s is available again", self._what)
        self._out = False
