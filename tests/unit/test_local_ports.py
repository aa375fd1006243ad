"""Ports for servers of this machine: free, not given twice, and of no use for outgoing connections."""

import socket
from itertools import cycle
from pathlib import Path

import pytest

from deploy.local import ports
from deploy.local.ports import free_port

OUTGOING = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_a_port_is_given_once() -> None:
    given = [free_port() for _ in range(200)]
    assert len(set(given)) == len(given)


@pytest.mark.skipif(not OUTGOING.exists(), reason="not Linux: no file says which ports are for outgoing connections")
def test_no_outgoing_connection_can_take_it_before_its_server_starts() -> None:
    first, last = map(int, OUTGOING.read_text().split())
    if first < 32_768:
        pytest.skip("this machine gives lower ports than usual to outgoing connections")
    assert not any(first <= free_port() <= last for _ in range(200))


def test_a_port_that_somebody_has_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken, free = server.getsockname()[1], free_port()
        monkeypatch.setattr(ports, "_IN_TURN", cycle([taken, free]))
        assert free_port() == free


def test_without_a_free_port_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(ports, "_IN_TURN", cycle([server.getsockname()[1]]))
        with pytest.raises(OSError, match="no free port between 20000 and 31999"):
            free_port()
