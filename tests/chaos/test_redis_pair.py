"""The pair of Redis servers really loses its last second, and an old master really answers on."""

import time
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from tests.chaos.pairs.redis_pair import LOST_SECONDS, OPTIONS, RedisPair
from tests.marks import exhaustive
from tests.support.servers import LocalServer, embedded_binary

pytestmark = exhaustive("the harness itself")


@pytest.fixture
def pair(tmp_path: Path) -> Generator[RedisPair]:
    folders = [tmp_path / "one", tmp_path / "two"]
    for folder in folders:
        folder.mkdir()
    one, two = (LocalServer(embedded_binary(), folder, *OPTIONS) for folder in folders)
    one.start()
    with closing(RedisPair(one, folders[0], two, folders[1])) as pair:
        pair.start()
        yield pair


def write(pair: RedisPair, seconds: float) -> None:
    until = time.time() + seconds
    with Redis.from_url(pair.master.url) as client:
        while time.time() < until:
            client.set("now", time.time())
            time.sleep(0.01)


def age(pair: RedisPair) -> float:
    """How many seconds old the last write is that the master knows."""
    with Redis.from_url(pair.master.url) as client:
        return time.time() - float(client.get("now") or 0)


def test_a_failover_loses_what_the_replica_had_not_and_the_old_master_answers_who_is_connected(pair: RedisPair) -> None:
    write(pair, 3 * LOST_SECONDS)
    url = pair.master.url
    with Redis.from_url(url) as connected:
        connected.ping()

        old, behind = pair.fail_over()

        assert behind > 0
        assert LOST_SECONDS / 2 < age(pair) < 3 * LOST_SECONDS
        assert pair.master.url == url
        assert time.time() - float(connected.get("now") or 0) < age(pair)
        connected.set("now", time.time())
    old.kill()
    pair.settle()
    assert age(pair) > LOST_SECONDS / 2
