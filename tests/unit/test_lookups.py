"""Lookups of names, one at a time for each peer and in threads of their own; and the sockets that a service has."""

import asyncio
import errno
import socket
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from callstream_runtime.event_loop import EventLoop
from callstream_runtime.listening import listeners
from callstream_runtime.lookups import MAX_PEERS, Addresses, Lookups, LookupTimes, Query
from tests.support.waiting import wait_until

ADDRESS: Addresses = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 7))]
REFUSED = socket.gaierror(socket.EAI_NONAME, "Name or service not known")


class NameServer:
    """What `socket.getaddrinfo` asks. Each name answers as set, or not before its event is set."""

    def __init__(self) -> None:
        self.answers: dict[str, Addresses | OSError | threading.Event] = {}
        self.asked: list[str] = []

    def getaddrinfo(self, host: str, *_: object) -> Addresses:
        self.asked.append(host)
        answer = self.answers[host]
        if isinstance(answer, threading.Event):
            answer.wait(30)
            return ADDRESS
        if isinstance(answer, OSError):
            raise answer
        return answer


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", server.getaddrinfo)
    yield server
    for answer in server.answers.values():
        if isinstance(answer, threading.Event):
            answer.set()


@pytest.fixture
def run() -> Iterator[Callable[[Any], Any]]:
    with asyncio.Runner(loop_factory=EventLoop) as runner:
        yield runner.run


async def look_up(host: str) -> Addresses:
    return await asyncio.get_running_loop().getaddrinfo(host, 7, type=socket.SOCK_STREAM)  # type: ignore[return-value]


def lookups_of(times: LookupTimes) -> Callable[[str], Awaitable[Addresses]]:
    """Lookups of the running loop with these times."""
    lookups = Lookups(asyncio.get_running_loop(), times)
    return lambda host: lookups.addresses(Query(host, 7, type=socket.SOCK_STREAM))


def test_names_without_an_answer_hold_no_other_name(run: Callable[[Any], Any], names: NameServer) -> None:
    names.answers = {"model": ADDRESS, **{f"silent-{number}": threading.Event() for number in range(64)}}

    async def scenario() -> Addresses:
        waiting = [asyncio.create_task(look_up(f"silent-{number}")) for number in range(64)]
        await wait_until(lambda: len(names.asked) == 64)
        async with asyncio.timeout(1):
            found = await look_up("model")
        for task in waiting:
            task.cancel()
        return found

    assert run(scenario()) == ADDRESS


def test_callers_of_one_peer_share_one_lookup_and_a_cancelled_one_does_not_end_it(
    run: Callable[[Any], Any], names: NameServer
) -> None:
    answer = names.answers["redis"] = threading.Event()

    async def scenario() -> list[Addresses]:
        callers = [asyncio.create_task(look_up("redis")) for _ in range(100)]
        await wait_until(lambda: names.asked == ["redis"])
        callers.pop().cancel()
        answer.set()
        return await asyncio.gather(*callers, look_up("redis"))

    assert run(scenario()) == [ADDRESS] * 100
    assert names.asked == ["redis"]


@pytest.mark.parametrize("trouble", [REFUSED, threading.Event()], ids=["it says no", "it says nothing"])
def test_the_last_good_answer_is_used_while_the_name_server_fails(
    run: Callable[[Any], Any], names: NameServer, trouble: Any
) -> None:
    names.answers["model"] = ADDRESS

    async def scenario() -> float:
        look_up = lookups_of(LookupTimes(fresh=0))
        await look_up("model")
        names.answers["model"] = trouble
        assert await look_up("model") == ADDRESS  # waits 0.1 s at most
        begun = asyncio.get_running_loop().time()
        for _ in range(100):
            assert await look_up("model") == ADDRESS
        return asyncio.get_running_loop().time() - begun

    # The second lookup began and has not ended, or a pause follows it: nobody waits a tenth of a second for each.
    assert run(scenario()) < 1
    assert len(names.asked) < 10


def test_failed_lookups_are_spaced_and_the_error_names_the_host(run: Callable[[Any], Any], names: NameServer) -> None:
    names.answers["redis"] = REFUSED

    async def scenario() -> None:
        look_up = lookups_of(LookupTimes(first_pause=60))
        for _ in range(50):
            with pytest.raises(
                socket.gaierror, match=r"the name 'redis' cannot be looked up: Name or service"
            ) as error:
                await look_up("redis")
            assert error.value.errno == socket.EAI_NONAME

    run(scenario())
    assert names.asked == ["redis"]


def test_a_first_lookup_without_an_answer_ends_and_a_late_answer_is_used(
    run: Callable[[Any], Any], names: NameServer
) -> None:
    answer = names.answers["redis"] = threading.Event()

    async def scenario() -> Addresses:
        look_up = lookups_of(LookupTimes(lookup=0.05))
        with pytest.raises(socket.gaierror, match=r"'redis' cannot be looked up: no answer for 0.05 s"):
            await look_up("redis")
        answer.set()
        found: list[Addresses] = []

        async def answered() -> bool:
            try:
                found.append(await look_up("redis"))
            except socket.gaierror:
                return False
            return True

        await wait_until(answered)
        return found[0]

    assert run(scenario()) == ADDRESS
    assert names.asked == ["redis"]


def test_the_number_of_peers_is_bounded(run: Callable[[Any], Any], names: NameServer) -> None:
    asked = [*range(MAX_PEERS + 2), 0]  # the first one is forgotten with the others, to make room
    names.answers = {f"host-{number}": ADDRESS for number in asked}

    async def scenario() -> None:
        look_up = lookups_of(LookupTimes(fresh=60))
        for number in [0, 1, 1, *asked]:
            await look_up(f"host-{number}")

    run(scenario())
    assert names.asked == [f"host-{number}" for number in asked]


def test_connections_try_each_address_and_addresses_are_not_looked_up(
    run: Callable[[Any], Any], names: NameServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def scenario() -> bytes:
        async def greet(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"hello")
            writer.close()

        monkeypatch.undo()
        async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            port: int = server.sockets[0].getsockname()[1]
            with socket.socket() as unused:
                unused.bind(("127.0.0.1", 0))  # nobody listens there
                closed: int = unused.getsockname()[1]
                names.answers["two.test"] = [(*ADDRESS[0][:4], ("127.0.0.1", found)) for found in (closed, port)]
                monkeypatch.setattr(socket, "getaddrinfo", names.getaddrinfo)
                received = b""
                for host, where in (("two.test", 1), ("127.0.0.1", port)):
                    reader, writer = await asyncio.open_connection(host, where)
                    received += await reader.read()
                    writer.close()
                return received

    assert run(scenario()) == b"hellohello"
    assert names.asked == ["two.test"]


# --- The sockets that a service listens on ---


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
