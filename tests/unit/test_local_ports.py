"""Ports for servers of this machine: free, not given twice, and of no use for outgoing connections."""

import socket
from pathlib import Path

import pytest

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


def test_a_port_that_is_taken_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as server:
        taken = server.getsockname()[1]
        monkeypatch.setenv("LOCAL_PORTS", f"{taken}-{taken + 20}")
        assert all(taken < free_port() <= taken + 20 for _ in range(42))
