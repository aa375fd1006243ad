"""Updates of resources: which ones workers watch, as they share it in Redis, and what they announce to engines.

A resource is watched for WATCHED_MS after it was read last. An announcement holds no content, and is not signed: a
false one makes an engine read once more. What is watched is signed, because it makes workers ask their servers.
"""

import re

import msgspec

from plugins_contract.messages import NOT_READABLE
from plugins_contract.signing import RequestKeys

WATCHED_MS = 3_600_000
MAX_WATCHED = 200
"""The most resources of one server that are watched. One more takes the place of the one that was read first."""
UPDATED = "updated"
"""The kind of an announcement, on the channel `Keys.control`."""
_VALUE = re.compile(rb"(\d{1,15}):([0-9a-f]*)")


class ResourcesUpdated(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """An announcement: these resources of a server may have changed. With an `owner` (`sessions.owner_of`) only in its
    session with a server that keeps state, which belongs to the `subject`."""

    kind: str = msgspec.field(default=UPDATED)
    server: str
    uris: tuple[str, ...]
    owner: str = ""
    subject: str = ""


def encode_update(update: ResourcesUpdated) -> bytes:
    """As it is announced."""
    return msgspec.json.encode({"kind": UPDATED} | msgspec.to_builtins(update))


def decode_update(data: bytes) -> ResourcesUpdated | None:
    """The announcement; None for any other message of the channel."""
    try:
        update = msgspec.json.decode(data, type=ResourcesUpdated)
    except NOT_READABLE:
        return None
    return update if update.kind == UPDATED else None


def watched_value(keys: RequestKeys, server: str, uri: str, until_ms: int) -> str:
    """What stands for a resource that is watched until then, on the clock of Redis."""
    return f"{until_ms}:{keys.sign_as(_purpose(server, until_ms), uri.encode())}"


def watched_until(keys: RequestKeys, server: str, uri: bytes, value: bytes, now_ms: int) -> int | None:
    """Until when a resource is watched; None for what is over, or was not written by a worker of ours."""
    if not (match := _VALUE.fullmatch(value)):
        return None
    until = int(match[1])
    if not now_ms < until <= now_ms + 2 * WATCHED_MS or not keys.accept_as(_purpose(server, until), uri, match[2]):
        return None
    return until


def _purpose(server: str, until_ms: int) -> bytes:
    return b"callstream watched " + msgspec.json.encode([server, until_ms])
