"""What is believed of the catalogs and pins in Redis: what a worker or an operator has signed with a request key.

A heartbeat names the digest of its worker's catalog, and is signed for one server and one worker. So one small
signature every few seconds covers a catalog of any size, and says when it was true: a catalog without a fresh
heartbeat, such as a copy of yesterday's, is believed no more. A pin is signed with the time of its acceptance.
Without keys nothing is signed, and everything is believed.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from plugins_contract.catalog import HEARTBEAT_STALE_MS, ServerHeartbeat
from plugins_contract.messages import NOT_READABLE
from plugins_contract.signing import RequestKeys

_HEARTBEAT, _SIGNATURE = b"worker:", b"signature:"


def digest_of(catalog: bytes) -> str:
    """The digest of a stored catalog, as heartbeats name it."""
    return hashlib.sha256(catalog).hexdigest()


def heartbeat_fields(keys: RequestKeys, server: str, worker: str, beat: ServerHeartbeat) -> dict[str, bytes | str]:
    """The fields of a worker in the entry of a server."""
    data = msgspec.json.encode(beat)
    return {f"worker:{worker}": data, f"signature:{worker}": keys.sign_as(_of_heartbeat(server, worker.encode()), data)}


def fields_of(worker: str) -> tuple[str, str]:
    """The names of these fields."""
    return f"worker:{worker}", f"signature:{worker}"


def sign_pin(keys: RequestKeys, server: str, field: bytes, at_ms: int, pin: bytes) -> str:
    """The signature of a field of a server's pins, with its time; '' without keys."""
    return f"{at_ms}:{keys.sign_as(_of_pin(server, field, at_ms), pin)}" if keys else ""


def pinned_at(keys: RequestKeys, server: str, field: bytes, pin: bytes, signature: bytes) -> int | None:
    """When a pin was signed; None when its signature is not valid. 0 without keys."""
    if not keys:
        return 0
    at, _, mark = signature.partition(b":")
    if not (at.isdigit() and len(at) < 20 and keys.accept_as(_of_pin(server, field, int(at)), pin, mark)):
        return None
    return int(at)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What is believed of the entry of one server.

    `beats` are its fresh heartbeats. `refused` says what is not believed of the others, '' for nothing.
    """

    beats: tuple[ServerHeartbeat, ...]
    refused: str
    _signed: bool

    def attests(self, digest: str) -> bool:
        """Whether a fresh heartbeat names this digest. True where nothing is signed."""
        return not self._signed or digest in self._catalogs

    @property
    def unattested(self) -> str:
        """Why a stored catalog that is not attested is refused; '' while workers have none that could stand there."""
        return "no worker attests its catalog" if self._catalogs else ""

    @property
    def _catalogs(self) -> set[str]:
        return {beat.catalog for beat in self.beats if beat.catalog}


class CatalogTrust:
    """Judges the entries of servers. It remembers the newest heartbeat of each worker: an older one is a copy."""

    def __init__(self, keys: RequestKeys) -> None:
        self._keys = keys
        self._seen: dict[tuple[str, bytes], int] = {}

    def judge(self, server: str, fields: Mapping[bytes, bytes], now_ms: int) -> Judgement:
        """What is believed of `fields` at `now_ms`, on the clock of Redis.

        Raises:
            NOT_READABLE: a heartbeat that would be believed cannot be decoded.
        """
        # A time in the future was seen before the clock of Redis was set back: it would refuse all later ones.
        self._seen = {of: at for of, at in self._seen.items() if abs(at - now_ms) <= HEARTBEAT_STALE_MS}
        beats: list[ServerHeartbeat] = []
        refused = ""
        for field, data in fields.items():
            if not field.startswith(_HEARTBEAT):
                continue
            worker = field.removeprefix(_HEARTBEAT)
            signature = fields.get(_SIGNATURE + worker, b"")
            if not self._keys.accept_as(_of_heartbeat(server, worker), data, signature):
                if not _is_old(data, now_ms):  # what a worker of an earlier release left is no attack
                    refused = "a heartbeat has no valid signature"
                continue
            beat = msgspec.json.decode(data, type=ServerHeartbeat)
            if beat.at < now_ms - HEARTBEAT_STALE_MS or (self._keys and beat.at > now_ms + HEARTBEAT_STALE_MS):
                continue
            if beat.at < self._seen.get((server, worker), 0):
                refused = "a heartbeat is an older one of its worker"
                continue
            if self._keys:
                self._seen[server, worker] = beat.at
            beats.append(beat)
        return Judgement(tuple(beats), refused, bool(self._keys))


def _is_old(heartbeat: bytes, now_ms: int) -> bool:
    try:
        return msgspec.json.decode(heartbeat, type=ServerHeartbeat).at < now_ms - HEARTBEAT_STALE_MS
    except NOT_READABLE:
        return False


def _of_heartbeat(server: str, worker: bytes) -> bytes:
    return b"callstream heartbeat " + msgspec.json.encode([server, worker])


def _of_pin(server: str, field: bytes, at_ms: int) -> bytes:
    return b"callstream pin " + msgspec.json.encode([server, field, at_ms])
