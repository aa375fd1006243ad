"""Listens on `plugins.control`: cancel requests. A message that is lost costs latency only: RENEW tells as well."""

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.connections import is_outage
from plugins_contract.keys import Keys

log = logging.getLogger(__name__)

LISTEN_SECONDS = 30.0
RETRY_SECONDS = 1.0


class _Notice(msgspec.Struct, rename="camel"):
    kind: str
    correlation_id: str = ""


async def listen_for_cancels(redis: Redis, keys: Keys, cancel: Callable[[str], None]) -> None:
    """Call `cancel` with the correlation id of each call whose end is asked for, for ever."""
    while True:
        try:
            async with redis.pubsub() as pubsub:
                await pubsub.subscribe(keys.control)
                while True:
                    message: Any = await _next(pubsub)
                    if message is not None and (correlation_id := _cancelled(message["data"])):
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


async def _next(pubsub: Any) -> Any:
    return await pubsub.get_message(ignore_subscribe_messages=True, timeout=LISTEN_SECONDS)
