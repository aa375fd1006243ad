"""Finds the master of a service by asking Sentinels, as their client guidelines say."""

from collections.abc import Callable
from typing import Any

from redis import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisError

from plugins_contract.outage import describe_outage

ANSWER_SECONDS = 0.8
"""How long one Sentinel may take: the next one is asked within the time that a connection has."""
LOGIN_SETTINGS = "REDIS_SENTINEL_USERNAME and REDIS_SENTINEL_PASSWORD"


class MasterFinder:
    """Asks one Sentinel after the other, beginning with the one that knew it last time. Blocking; for any thread."""

    def __init__(self, hosts: tuple[tuple[str, int], ...], service: str, client: Callable[[str, int], Redis]) -> None:
        """`client` makes a client of the Sentinel at a host and port."""
        self._hosts = hosts
        self._service = service
        self._client = client

    def find(self) -> tuple[str, int]:
        """Where the master is now.

        Raises:
            redis.exceptions.ConnectionError: no Sentinel knows one; the text says what each answered.
        """
        answers: list[str] = []
        for host, port in self._hosts:
            try:
                with self._client(host, port) as sentinel:
                    found = _ask(sentinel, self._service)
            except (RedisError, OSError) as error:
                answers.append(f"{host}:{port}: {describe_outage(error, login_settings=LOGIN_SETTINGS)}")
                continue
            if found is None:
                answers.append(f"{host}:{port} knows no service of this name")
                continue
            self._hosts = ((host, port), *(each for each in self._hosts if each != (host, port)))
            return found[0].decode(), int(found[1])
        raise RedisConnectionError(f"no Sentinel knows the master of {self._service!r} ({'; '.join(answers)})")


def _ask(sentinel: Redis, service: str) -> Any:
    untyped: Any = sentinel
    return untyped.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", service)
