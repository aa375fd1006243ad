"""One script run many times in one round trip, on each kind of server."""

import pytest
from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from dialog_engine.streams.scripts import Command, run_each
from plugins_contract.connections import command_client
from plugins_contract.ledger.scripts import script

pytestmark = [pytest.mark.anyio, pytest.mark.every_redis]

ADD = script(
    "add", "redis.call('APPEND', KEYS[1], ARGV[1]) redis.call('EXPIRE', KEYS[1], 9) return redis.call('GET', KEYS[1])"
)


def added(*letters: str) -> list[Command]:
    return [(["word"], [letter]) for letter in letters]


@pytest.mark.parametrize("letters", ["a", "abc"])
async def test_a_server_that_does_not_know_the_script_is_sent_it_and_nothing_is_done_twice(
    redis: Redis, letters: str
) -> None:
    answers = await run_each(redis, ADD, added(*letters))

    assert answers == [letters[: n + 1].encode() for n in range(len(letters))]


@pytest.mark.parametrize("others", [0, 2])
async def test_what_fails_has_its_error_in_its_place(redis: Redis, others: int) -> None:
    await redis.lpush("list", "x")
    await redis.expire("list", 9)

    failed, *answers = await run_each(redis, ADD, [(["list"], ["a"]), *added(*"bc"[:others])])

    assert isinstance(failed, ResponseError)
    assert not isinstance(failed, NoScriptError)
    assert answers == [b"b", b"bc"][:others]


@pytest.mark.parametrize("letters", ["a", "abc"])
async def test_without_a_server_there_are_no_answers(letters: str) -> None:
    async with command_client("redis://127.0.0.1:1") as nowhere:
        with pytest.raises(RedisConnectionError):
            await run_each(nowhere, ADD, added(*letters))
