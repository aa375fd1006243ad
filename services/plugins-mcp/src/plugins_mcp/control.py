"""Listens on `plugins.control` for cancel requests. A lost message costs latency only: RENEW reports them as well."""

from collections.abc import Callable

import msgspec
from redis.asyncio import Redis

from callstream_runtime.loops import follow
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE


class _Notice(msgspec.Struct, rename="camel"):
    kind: str
    correlation_id: str = ""


async def listen_for_cancels(redis: Redis, keys: Keys, cancel: Callable[[str], None]) -> None:
    """Call `cancel` with the correlation id of each call that is to be cancelled. Runs until cancelled."""

    def receive(data: bytes | None) -> None:
        if data is not None and (correlation_id := _cancelled(data)):
            cancel(correlation_id)

    await follow(redis, keys.control, receive)


def _cancelled(data: bytes) -> str | None:
    """The call that `data` asks to cancel; None for any other message."""
    try:
        notice = msgspec.json.decode(data, type=_Notice)
    except NOT_READABLE:
        return None
    return notice.correlation_id if notice.kind == "cancel" else None
