"""Attacks by somebody who can write to Redis: messages that cannot be read hold up none of those that can."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest
from redis.asyncio import Redis

from callstream_runtime.connections import blocking_client
from callstream_runtime.loops import LISTEN_SECONDS
from dialog_engine.peers.control import ControlListener
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import decode_reply
from plugins_mcp.control import listen_for_control
from tests.integration.engines import at_work
from tests.marks import promise
from tests.support.waiting import wait_until

KEYS = Keys()
UNREADABLE = (
    b"",
    b"\xff",
    b'{"kind": "\xff"}',
    b'{"kind": "stop\xed\xa0\x80"}',
    b'{"kind": ' + b"[" * 100_000,
    b"null",
)

Listener = Callable[[Redis, Callable[[str], None]], Coroutine[Any, Any, None]]


async def worker(redis: Redis, receive: Callable[[str], None]) -> None:
    await listen_for_control(redis, KEYS, receive, lambda owners: receive(owners[0]))


async def engine(redis: Redis, receive: Callable[[str], None]) -> None:
    def who_reads(turn_id: str, _within: float) -> None:
        receive(turn_id)

    await ControlListener(redis, KEYS, receive, lambda: None, receive, lambda: None, who_reads, receive).run()


@promise("hostile input of any side gives a named error, and others are served")
@pytest.mark.parametrize(
    ("listen", "channel", "message"),
    [
        (worker, KEYS.control, {"kind": "cancel", "correlationId": "x"}),
        (worker, KEYS.control, {"kind": "forget", "owners": ["x"]}),
        (engine, KEYS.engines, {"kind": "stop", "turnId": "x"}),
        (engine, KEYS.engines, {"kind": "who_reads", "turnId": "x"}),
        (engine, KEYS.engines, {"kind": "reads", "turnId": "x"}),
    ],
)
async def test_control_messages_that_cannot_be_read_are_passed_by(
    redis: Redis, redis_url: str, caplog: pytest.LogCaptureFixture, listen: Listener, channel: str, message: Any
) -> None:
    received = list[str]()
    blocking = blocking_client(redis_url, block_seconds=LISTEN_SECONDS)

    async def heard() -> bool:
        # A message before the subscription is lost.
        await asyncio.gather(*(redis.publish(channel, data) for data in UNREADABLE))
        await redis.publish(channel, msgspec.json.encode(message))
        return bool(received)

    try:
        async with at_work(lambda: listen(blocking, received.append)):
            await wait_until(heard, what="the message that can be read")
    finally:
        await blocking.aclose()
    assert set(received) == {"x"}
    assert not [record for record in caplog.records if record.exc_info]


@pytest.mark.parametrize("data", UNREADABLE)
def test_a_reply_that_cannot_be_read_has_one_exception(data: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_reply(data, cipher=CLEAR)
