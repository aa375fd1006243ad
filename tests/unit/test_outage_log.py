"""OutageLog: one warning when an outage begins, one message when it ends."""

import logging

import pytest

from callstream_runtime.outage_log import OutageLog


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outages = OutageLog(logging.getLogger("test"), "the store")

    outages.worked()
    for _ in range(3):
        outages.failed(OSError("disk full"))
    outages.worked()
    outages.worked()
    outages.failed(OSError("disk full again"))

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the store is unavailable: disk full"),
        ("INFO", "the store is available again"),
        ("WARNING", "the store is unavailable: disk full again"),
    ]
