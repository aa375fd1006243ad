"""Signatures of what engines, workers and other producers write to Redis for each other, by keys that they share.

A worker that has keys runs only requests that are signed. The signature is an HMAC-SHA256 over the bytes of `event`, so
it covers everything that decides what runs: server, tool, arguments, approval, execution class, deadline, subject,
roles, session and correlation id. It also covers whether the entry is marked as one that has a ledger: without the mark
a worker would create a ledger for a copy of an old request. `trust.py` signs catalogs and pins.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

MIN_KEY_CHARS = 32
LONGEST_ADOPTED_MS = 24 * 3_600_000
"""The latest deadline of a signed request without a ledger: a copy sent after its ledger has expired is too late."""

_REQUEST = {True: b"callstream request, ledger 1", False: b"callstream request, ledger 0"}


class RequestKeys:
    """Secrets that producers and workers share. The first one signs; a signature by any of them is accepted.

    Without keys nothing is signed and everything is accepted.
    """

    def __init__(self, secrets: Sequence[str] = ()) -> None:
        self._secrets = tuple(secret.encode() for secret in secrets)

    def __bool__(self) -> bool:
        return bool(self._secrets)

    def sign(self, event: bytes, *, has_ledger: bool) -> str:
        """The signature of a request; '' without keys."""
        return self.sign_as(_REQUEST[has_ledger], event)

    def accept(self, event: bytes, signature: bytes, *, has_ledger: bool) -> bool:
        """Whether a request may be run."""
        return self.accept_as(_REQUEST[has_ledger], event, signature)

    def sign_as(self, purpose: bytes, data: bytes) -> str:
        """The signature of `data`, which is valid for this purpose only; '' without keys. A purpose has one line."""
        return _signature(self._secrets[0], purpose, data) if self._secrets else ""

    def accept_as(self, purpose: bytes, data: bytes, signature: bytes) -> bool:
        """Whether `signature` is that of any key. True without keys."""
        return not self._secrets or any(
            hmac.compare_digest(_signature(secret, purpose, data).encode(), signature) for secret in self._secrets
        )


def read_request_keys(path: Path | None) -> RequestKeys:
    """The keys in a file; none without a file. Raises ValueError as `read_keys` does."""
    return RequestKeys(read_keys(path) if path else ())


def read_keys(path: Path) -> list[str]:
    """The keys in a file, one in each line. Empty lines and lines that begin with # are ignored.

    Raises:
        ValueError: the file cannot be read, holds no key, or a key is too short. The text holds no key.
    """
    try:
        lines = [line.strip() for line in path.read_text().splitlines()]
    except (OSError, UnicodeDecodeError) as error:
        reason = (error.strerror if isinstance(error, OSError) else "") or "it is not text"
        raise ValueError(f"{path} cannot be read: {reason}") from None
    secrets = [line for line in lines if line and not line.startswith("#")]
    if not secrets or any(len(secret) < MIN_KEY_CHARS for secret in secrets):
        raise ValueError(
            f"{path} must hold one key in each line, each of at least {MIN_KEY_CHARS} characters:"
            " create one with `openssl rand -hex 32`"
        )
    if any(map(is_placeholder, secrets)):
        raise ValueError(f"{path} holds the key of an example: create one with `openssl rand -hex 32`")
    return secrets


def is_placeholder(secret: str) -> bool:
    """Whether a secret is that of an example, such as change-me: everybody knows it."""
    return "changeme" in re.sub(r"[\W_]", "", secret).lower()


def _signature(secret: bytes, purpose: bytes, data: bytes) -> str:
    return hmac.new(secret, purpose + b"\n" + data, hashlib.sha256).hexdigest()
