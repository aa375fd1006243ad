"""Results that are too large for Redis: a worker sends them to an engine, any one of those that share a store.

`PUT /results/{correlationId}` at the operations port of an engine has the outcome as JSON in its body, sealed as the
reply would be. The signature, by the request keys, covers the call, the fence of the worker that has it, and the digest
of the body: nobody else can write a result, and a worker that has lost the call cannot replace that of the next one.
COMPLETE then carries an outcome that names the digest (`ToolOutcome.kept`) in place of the content.
"""

import hashlib
from dataclasses import dataclass

import msgspec

from plugins_contract.encryption import Cipher, reply_owner
from plugins_contract.messages import NOT_READABLE, ToolCallRequested
from plugins_contract.outcomes import TextBlock, ToolOutcome
from plugins_contract.signing import RequestKeys

LARGE_BYTES = 256 * 1024
"""An outcome that is longer, as JSON, is sent to an engine."""
MAX_BYTES = 32 * 1024 * 1024
"""The largest body that an engine takes. Text and media of outcomes are bounded, so a worker makes none that is
larger unless RESULT_MAX_BYTES says so."""
PATH = "/results/"
FENCE, DIGEST, SIGNATURE = "x-fence", "x-digest", "x-signature"
"""The header fields of the request."""
_PURPOSE = b"callstream large result"
_ELSEWHERE = (
    "The result is too large to be sent with the answer. An engine keeps it, and this one cannot read it there."
)


@dataclass(frozen=True, slots=True)
class LargeResult:
    """The outcome of a call as it is sent: `body` has it, and `digest` is the SHA-256 of that in hexadecimal digits."""

    correlation_id: str
    fence: int
    digest: str
    body: bytes

    def fields(self, keys: RequestKeys) -> dict[str, str]:
        """The header fields that go with the body."""
        signature = keys.sign_as(_PURPOSE, _signed(self.correlation_id, self.fence, self.digest))
        return {FENCE: str(self.fence), DIGEST: self.digest, SIGNATURE: signature}


def is_signed(keys: RequestKeys, correlation_id: str, fence: int, digest: str, signature: str) -> bool:
    """Whether a worker that has the keys sends this. Never without keys."""
    signed = _signed(correlation_id, fence, digest)
    return bool(keys) and keys.accept_as(_PURPOSE, signed, signature.encode())


def digest_of(body: bytes) -> str:
    """The digest of a body."""
    return hashlib.sha256(body).hexdigest()


def to_send(request: ToolCallRequested, fence: int, outcome: ToolOutcome, cipher: Cipher) -> LargeResult | None:
    """The outcome as it is sent to an engine; None when it is small, or the engines of the call take none."""
    if not request.keeps_large or not LARGE_BYTES < len(body := msgspec.json.encode(outcome)) <= MAX_BYTES:
        return None
    if request.sealed:
        body = cipher.seal(body, reply_owner(request.correlation_id))
    return LargeResult(request.correlation_id, fence, digest_of(body), body)


def in_place_of(outcome: ToolOutcome, digest: str) -> ToolOutcome:
    """What COMPLETE carries for an outcome that an engine keeps. A release that does not know of it shows its text."""
    return msgspec.structs.replace(outcome, content=(TextBlock(_ELSEWHERE),), truncated=True, kept=digest)


def read(body: bytes, correlation_id: str, cipher: Cipher) -> ToolOutcome:
    """The outcome in a body.

    Raises:
        ValueError: it is none, or cannot be decrypted, or is not encrypted where everything is.
    """
    try:
        outcome = msgspec.json.decode(cipher.open(body, reply_owner(correlation_id)), type=ToolOutcome)
    except NOT_READABLE as error:
        raise ValueError(f"it is no outcome: {error}") from None
    if not outcome.state.terminal or outcome.kept:
        raise ValueError("it is no terminal outcome")
    return outcome


def _signed(correlation_id: str, fence: int, digest: str) -> bytes:
    return f"{correlation_id}\n{fence}\n{digest}".encode()
