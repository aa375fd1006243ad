"""Listens on `plugins.control` for cancel requests and deleted owners of sessions. A lost message costs latency only:
the next renewal of the call's or the session's lease reports the same.
"""

from collections.abc import Callable, Sequence

import msgspec
from redis.asyncio import Redis

from callstream_runtime.loops import follow
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE


class _Notice(msgspec.Struct, rename="camel"):
    kind: str
    correlation_id: str = ""
    owners: tuple[str, ...] = ()


async def listen_for_control(
    redis: Redis, keys: Keys, cancel: Callable[[str], None], forget: Callable[[Sequence[str]], None]
) -> None:
    """Call `cancel` with the correlation id of each call that is to be cancelled, and `forget` with the owners whose
    sessions are to end (`plugins_contract.sessions`). Runs until cancelled."""

    def receive(data: bytes | None) -> None:
        match _notice(data or b""):
            case _Notice("cancel", correlation_id) if correlation_id:
                cancel(correlation_id)
            case _Notice("forget", _, owners):
                forget(owners)
            case _:
                pass

    await follow(redis, keys.control, receive)


def _notice(data: bytes) -> _Notice | None:
    """The message in `data`; None for any that cannot be read."""
    try:
        return msgspec.json.decode(data, type=_Notice)
    except NOT_READABLE:
        return None
