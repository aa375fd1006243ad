"""Keys of encryption at rest, from a file. What they seal has the form that `plugins_contract.encryption` describes."""

import hashlib
from collections.abc import Sequence
from pathlib import Path

from plugins_contract.encryption import CLEAR, ID_CHARS, Cipher
from plugins_contract.signing import read_keys


def read_encryption_keys(path: Path | None) -> Cipher:
    """The cipher of the keys in a file, one in each line; CLEAR without a file.

    Raises:
        ValueError: the file cannot be read, holds no key, or a key is too short. The text holds no key.
    """
    return CLEAR if path is None else cipher_of(read_keys(path))


def cipher_of(secrets: Sequence[str]) -> Cipher:
    """Seals with the first of these secrets and opens with any."""
    from cryptography.exceptions import InvalidTag  # noqa: PLC0415 -- slow, and mostly not used
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # noqa: PLC0415

    class AesKey:
        def __init__(self, key: bytes) -> None:
            self._aes = AESGCM(key)
            self.encrypt = self._aes.encrypt

        def decrypt(self, nonce: bytes, data: bytes, associated_data: bytes | None, /) -> bytes:
            try:
                return self._aes.decrypt(nonce, data, associated_data)
            except InvalidTag as error:
                raise ValueError from error

    return Cipher({key_id(secret): AesKey(_derived("key", secret)) for secret in secrets})


def key_id(secret: str) -> str:
    """The name of a key in sealed values. It says nothing about the key."""
    return _derived("id", secret).hex()[:ID_CHARS]


def _derived(purpose: str, secret: str) -> bytes:
    return hashlib.sha256(f"callstream encryption {purpose}\n{secret}".encode()).digest()
