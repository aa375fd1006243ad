"""The form of what is encrypted at rest: texts, arguments and results in the store and in Redis, by AES-256-GCM.

A sealed value names its key, has a random nonce, and is bound to what it belongs to (`owner`): in another row, call or
column it cannot be opened. Ids, names and times stay readable, so that nothing but the reader of a text needs a key.
Values that were stored without a key stay readable, until everything is known to be sealed.
"""

import base64
import binascii
import os
from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from plugins_contract.messages import (
    READ_VERSION,
    ROUND_VERSION,
    SEALED_VERSION,
    ToolCallRequested,
    UnsupportedEventError,
    approve,
)
from plugins_contract.questions import NextRound

SEALED = b"sealed1:"
"""A sealed value begins with this, then its key id and a colon. No JSON begins so."""
MARK = "sealed"
"""A stored text that begins with this is not the text itself: `Cipher.open_text` gives it."""
_SEALED_TEXT = SEALED.decode()
_CLEAR_TEXT = "sealed0:"
"""Precedes a clear text that begins with MARK itself."""
_NONCE = 12
ID_CHARS = 8
"""Hex digits in the id of a key."""


class Key(Protocol):
    """AES-256-GCM with one key."""

    def encrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """The encrypted data, with its tag."""
        ...

    def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
        """The data. Raises ValueError when it was changed, cut short, or is bound to something else."""
        ...


class DecryptionError(ValueError):
    """A sealed value cannot be opened: its key is missing, or it was changed or moved. The text names what to do."""


class Cipher:
    """Seals with the first key and opens with any. Without keys nothing is sealed, and only clear values can be read.

    `keys` are by their ids. The services read them from a file: `callstream_runtime.encryption_keys`.

    `active` is whether it has keys; `first` is the id of the key that seals, '' without one. While `strict`, clear
    values cannot be read either: everything was sealed, so somebody without a key has written them.
    """

    def __init__(self, keys: Mapping[str, Key]) -> None:
        self._keys = keys
        self.active = bool(keys)
        self.strict = False
        self.first = next(iter(keys), "")

    @property
    def ids(self) -> frozenset[str]:
        """The ids of all keys."""
        return frozenset(self._keys)

    def seal(self, data: bytes, owner: str) -> bytes:
        """Data bound to `owner`. Unchanged without keys."""
        if not self.active:
            return data
        return SEALED + self.first.encode() + b":" + self._sealed(data, owner)

    def open(self, data: bytes, owner: str) -> bytes:
        """The data in a sealed value; what is not sealed is unchanged.

        Raises:
            DecryptionError: it cannot be opened, or is clear while this is strict.
        """
        if not data.startswith(SEALED):
            self._check_clear(data, owner)
            return data
        start = len(SEALED) + ID_CHARS
        return self._opened(data[len(SEALED) : start].decode(errors="replace"), data[start + 1 :], owner)

    def seal_text(self, text: str, owner: str) -> str:
        """Like `seal`, as text. An empty text stays empty."""
        if not self.active or not text:
            return _CLEAR_TEXT + text if text.startswith(MARK) else text
        return f"{_SEALED_TEXT}{self.first}:{base64.b64encode(self._sealed(text.encode(), owner)).decode()}"

    def open_text(self, text: str, owner: str) -> str:
        """Like `open`, for text.

        Raises:
            DecryptionError: it cannot be opened.
        """
        if not text.startswith(_SEALED_TEXT):
            self._check_clear(text, owner)
            return text.removeprefix(_CLEAR_TEXT)
        name, _, encoded = text.removeprefix(_SEALED_TEXT).partition(":")
        try:
            data = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            raise DecryptionError(f"the text of {owner} was changed: it is not base64") from None
        return self._opened(name, data, owner).decode()

    def _check_clear(self, value: str | bytes, owner: str) -> None:
        if self.strict and value:
            raise DecryptionError(f"{owner} is not encrypted, and everything was: somebody without a key wrote it")

    def _sealed(self, data: bytes, owner: str) -> bytes:
        nonce = os.urandom(_NONCE)
        return nonce + self._keys[self.first].encrypt(nonce, data, owner.encode())

    def _opened(self, name: str, data: bytes, owner: str) -> bytes:
        key = self._keys.get(name)
        if key is None:
            raise DecryptionError(f"{owner} is encrypted with the key {name}: add this key to ENCRYPTION_KEYS_FILE")
        try:
            return key.decrypt(data[:_NONCE], data[_NONCE:], owner.encode())
        except ValueError:  # it has no text
            raise DecryptionError(f"{owner} cannot be decrypted: it was changed, or belongs elsewhere") from None


CLEAR = Cipher({})
"""Seals nothing."""


def key_of(value: str | bytes) -> str:
    """The id of the key that sealed a value; '' for a clear one."""
    head = value[: len(SEALED) + ID_CHARS]
    text = head if isinstance(head, str) else head.decode("latin-1")
    return text.removeprefix(_SEALED_TEXT) if text.startswith(_SEALED_TEXT) else ""


def seal_request(request: ToolCallRequested, cipher: Cipher) -> ToolCallRequested:
    """The request with its arguments, and what a later round brings, sealed, as it may be stored and sent. Unchanged
    without keys.

    It keeps its arguments in memory, and is encoded without them. One that is sealed already stays as it is.
    """
    if not cipher.active or request.sealed:
        return request
    secret: Any = (request.arguments, request.next_round) if request.next_round else request.arguments
    sealed = cipher.seal_text(msgspec.json.encode(secret).decode(), _owner_of_arguments(request))
    version = ROUND_VERSION if request.next_round else READ_VERSION if request.kind else SEALED_VERSION
    request = msgspec.structs.replace(request, event_version=version, sealed=sealed)
    return approve(request, request.approved.by) if request.approved else request


def open_request(request: ToolCallRequested, cipher: Cipher) -> ToolCallRequested:
    """The request with its arguments. It still holds their sealed form, so that it is never encoded in clear.

    Raises:
        UnsupportedEventError: they cannot be opened.
    """
    if not request.sealed:
        return request
    try:
        text = cipher.open_text(request.sealed, _owner_of_arguments(request))
        if request.next_round:
            arguments, brings = msgspec.json.decode(text, type=tuple[dict[str, Any], NextRound])
            return msgspec.structs.replace(request, arguments=arguments, next_round=brings)
        return msgspec.structs.replace(request, arguments=msgspec.json.decode(text, type=dict[str, Any]))
    except (DecryptionError, msgspec.DecodeError) as error:
        raise UnsupportedEventError(str(error)) from error


def reply_owner(correlation_id: str) -> str:
    """What the replies of a call are bound to."""
    return f"reply {correlation_id}"


def entry_owner(turn_id: str, entry_id: str) -> str:
    """What an entry of a turn's log is bound to."""
    return f"turn {turn_id} {entry_id}"


def fact_owner(turn_id: str, field: str) -> str:
    """What a text of a `TurnFinished` is bound to; `field` is its name in JSON."""
    return f"fact {turn_id} {field}"


def _owner_of_arguments(request: ToolCallRequested) -> str:
    """Arguments are bound to the call, its tool and its subject."""
    return f"arguments {request.correlation_id} {request.server} {request.tool} {request.subject}"
