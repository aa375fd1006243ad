"""API keys. The file of keys contains hashes only, and may be replaced while the engine runs.

A key is 256 random bits, which cannot be tried out, so a plain SHA-256 protects it as well as a slow hash would. Slow
hashes are for passwords, which people choose, and would cost each request tens of milliseconds.
"""

import contextlib
import fcntl
import hashlib
import os
import re
import secrets
import tempfile
from collections.abc import Callable, Generator, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import msgspec
from pydantic import SecretStr

from callstream_runtime.watched_file import WatchedFile, read_file
from dialog_engine.identity.principal import ROLE, USER, Principal

PREFIX = "callstream_"
"""Begins each created key, so that scanners for secrets can find one that was published."""
CREDENTIAL = "key:"
"""Begins the credentials that are API keys. The hash follows: a key that replaces another has the same id at times."""
_DIGEST = r"^[0-9a-f]{64}$"
_NAME = re.compile(r"[^\s\x00-\x1f\x7f]{1,255}")

Name = Annotated[str, msgspec.Meta(pattern=rf"^{ROLE.pattern}\Z")]
Moment = Annotated[datetime, msgspec.Meta(tz=True)]


class ApiKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One key. `sha256` is of the key as it is sent, in hexadecimal."""

    id: Name
    sha256: Annotated[str, msgspec.Meta(pattern=_DIGEST)]
    subject: Name
    roles: tuple[Name, ...] = (USER,)
    created: Moment | None = None
    expires: Moment | None = None

    def principal(self) -> Principal:
        """The sender of a request with this key."""
        expires_at = self.expires.timestamp() if self.expires else None
        return Principal(self.subject, self.roles, self.subject, expires_at, self.id, f"{CREDENTIAL}{self.sha256}")


class KeyFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of API_KEYS_FILE."""

    keys: tuple[ApiKey, ...] = ()


class ApiKeys:
    """The keys of API_KEYS and of API_KEYS_FILE."""

    def __init__(self, named: Mapping[str, SecretStr], path: Path | None = None) -> None:
        """`named` are keys by their subject, with the role `user`.

        Raises:
            ValueError: the file cannot be used.
        """
        simple = [
            ApiKey(id=name, sha256=digest_of(key.get_secret_value()).hex(), subject=name) for name, key in named.items()
        ]
        self._named = _by_digest(simple)
        self._file = WatchedFile(path, lambda data: _by_digest(parse_keys(data).keys), {}) if path else None

    def find(self, digest: bytes) -> ApiKey | None:
        """The key with this digest, expired or not.

        The time that a look-up takes depends on the digest, of which a sender cannot choose a part.
        """
        key = self._named.get(digest)
        return self._file.content.get(digest) if key is None and self._file else key

    def has_subject(self, subject: str) -> bool:
        """Whether there is a key of this subject."""
        files = [self._named, *([self._file.content] if self._file else [])]
        return bool(subject) and any(key.subject == subject for keys in files for key in keys.values())

    def of(self, credential: str) -> ApiKey | None:
        """The key, expired or not, that is this credential."""
        return self.find(bytes.fromhex(credential.removeprefix(CREDENTIAL)))


def digest_of(key: str) -> bytes:
    """The SHA-256 of a key."""
    return hashlib.sha256(key.encode()).digest()


def parse_keys(data: bytes) -> KeyFile:
    """The content of a file of keys.

    Raises:
        ValueError: it is not valid; the text says where.
    """
    try:
        content = msgspec.json.decode(data, type=KeyFile)
    except msgspec.DecodeError as error:
        raise ValueError(f"is not a file of keys as `dialog-engine keys` writes it: {error}") from None
    for what in ("id", "sha256"):
        values = [getattr(key, what) for key in content.keys]
        if len(set(values)) != len(values):
            raise ValueError(f"has two keys with the same {what}")
    return content


def _by_digest(keys: Iterable[ApiKey]) -> dict[bytes, ApiKey]:
    return {bytes.fromhex(key.sha256): key for key in keys}


# --- Changes of the file ---


def add_key(path: Path, subject: str, roles: Iterable[str], expires: datetime | None) -> tuple[ApiKey, str]:
    """Create a key and add its hash to the file, which is created if it is missing. Returns the entry and the key.

    Raises:
        ValueError: the file cannot be used, or a name is not usable.
    """
    roles = tuple(dict.fromkeys(roles)) or (USER,)
    for name in (subject, *roles):
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} cannot be a name: use 1 to 255 characters without spaces")
    secret = PREFIX + secrets.token_urlsafe(32)
    entry = ApiKey(
        id=secrets.token_hex(4),
        sha256=digest_of(secret).hex(),
        subject=subject,
        roles=roles,
        created=datetime.now(UTC).replace(microsecond=0),
        expires=expires,
    )
    _change(path, lambda keys: (*keys, entry))
    return entry, secret


def revoke_key(path: Path, key_id: str) -> ApiKey | None:
    """Remove a key from the file. Returns it; None when there is none with this id. Raises ValueError as `add_key`."""
    found = next((key for key in list_keys(path) if key.id == key_id), None)
    if found:
        _change(path, lambda keys: tuple(key for key in keys if key.id != key_id))
    return found


def list_keys(path: Path) -> tuple[ApiKey, ...]:
    """The keys in the file; none when it is missing. Raises ValueError when it cannot be used."""
    return read_file(path, parse_keys).keys if path.exists() else ()


def _change(path: Path, change: Callable[[tuple[ApiKey, ...]], tuple[ApiKey, ...]]) -> None:
    """Replace the file at once, readable by its owner only."""
    try:
        with _locked(path.parent):
            content = msgspec.json.format(msgspec.json.encode(KeyFile(change(list_keys(path)))), indent=2)
            handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
            try:
                with os.fdopen(handle, "wb") as file:
                    file.write(content + b"\n")
                    file.flush()
                    os.fsync(file.fileno())
                Path(temporary).replace(path)
            except BaseException:
                Path(temporary).unlink(missing_ok=True)
                raise
    except OSError as error:
        raise ValueError(f"{path} cannot be written: {error.strerror}") from None


@contextlib.contextmanager
def _locked(folder: Path) -> Generator[None]:
    """One change at a time, so that none is lost."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
