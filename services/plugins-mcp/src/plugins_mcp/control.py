"""Listens on `plugins.control`: cancel requests. A message that is lost costs latency only: RENEW tells as well."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import aclosing

import msgspec
from redis.asyncio import Redis

from plugins_contract.announcements import announcements
from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0


class _Notice(msgspec.Struct, rename="camel"):
    kind: str
    correlation_id: str = ""


async def listen_for_cancels(redis: Redis, keys: Keys, cancel: Callable[[str], None]) -> None:
    """Call `cancel` with the correlation id of each call whose end is asked for, for ever."""
    while True:
        try:
            async with aclosing(announcements(redis, keys.control)) as heard:
                async for data in heard:
                    if data is not None and (correlation_id := _cancelled(data)):
                        cancel(correlation_id)
        except Exception as error:
            if not is_outage(error):
                log.exception("cancel requests cannot be heard")
            await asyncio.sleep(RETRY_SECONDS)


def _cancelled(data: bytes) -> str | None:
    """The call whose end `data` asks for; None for any other message."""
    try:
        notice = msgspec.json.decode(data, type=_Notice)
    except msgspec.DecodeError:
        return None
    return notice.correlation_id if notice.kind == "cancel" else None
