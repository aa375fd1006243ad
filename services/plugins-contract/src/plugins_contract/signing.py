"""Signatures of requests. A worker that has keys runs only what a producer with one of them has signed.

The signature is an HMAC-SHA256 over the bytes of `event`, so it covers everything that decides what runs: server, tool,
arguments, execution class, deadline, subject, roles, session and correlation id. It also covers whether the entry is
marked as one that has a ledger: without the mark a worker would create a ledger for a copy of an old request.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence
from pathlib import Path

MIN_KEY_CHARS = 32
LONGEST_ADOPTED_MS = 24 * 3_600_000
"""The latest deadline of a signed request without a ledger: a copy sent after its ledger has expired is too late."""


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
        return _signature(self._secrets[0], event, has_ledger) if self._secrets else ""

    def accept(self, event: bytes, signature: bytes, *, has_ledger: bool) -> bool:
        """Whether a request may be run."""
        return not self._secrets or any(
            hmac.compare_digest(_signature(secret, event, has_ledger).encode(), signature) for secret in self._secrets
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


def _signature(secret: bytes, event: bytes, has_ledger: bool) -> str:
    purpose = b"callstream request, ledger 1\n" if has_ledger else b"callstream request, ledger 0\n"
    return hmac.new(secret, purpose + event, hashlib.sha256).hexdigest()
