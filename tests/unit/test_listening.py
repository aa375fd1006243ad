"""The sockets that a service listens on."""

import errno
import socket

import pytest

from callstream_runtime.listening import listeners


def test_each_address_gets_a_socket() -> None:
    found = listeners("127.0.0.1, 127.0.0.2", 0)
    assert [listener.getsockname()[0] for listener in found] == ["127.0.0.1", "127.0.0.2"]
    for listener in found:
        listener.close()


def test_of_a_name_the_addresses_of_this_machine_count_and_it_must_have_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def named(*addresses: str) -> None:
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]

        def answer(*_: object, **__: object) -> list[object]:
            return [*found]

        monkeypatch.setattr("callstream_runtime.listening.socket.getaddrinfo", answer)

    named("203.0.113.1", "127.0.0.1", "198.51.100.1")
    [listener] = listeners("service", 0)
    listener.close()
    named("203.0.113.1")
    with pytest.raises(OSError, match="service is no address of this machine") as caught:
        listeners("service", 0)
    assert caught.value.errno == errno.EADDRNOTAVAIL
