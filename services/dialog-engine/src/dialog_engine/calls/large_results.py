"""Results that are too large for Redis: this engine takes them from workers, and reads them for its calls."""

import asyncio
import logging
from typing import Protocol

import msgspec

from dialog_engine.errors import StorageUnavailableError
from plugins_contract import large_results
from plugins_contract.encryption import Cipher
from plugins_contract.outcomes import TextBlock, ToolOutcome
from plugins_contract.signing import RequestKeys

log = logging.getLogger(__name__)

AT_ONCE = 4
"""How many are taken, and how many are read, at the same time. Others wait."""
AGAIN_SECONDS = 0.5
_GONE = "The tool ran, and what it returned is lost: the store has it no more. It need not be run again to take effect."


class LargeResultStore(Protocol):
    """Keeps large results until they are committed."""

    async def keep(self, correlation_id: str, fence: int, digest: str, data: bytes) -> bool:
        """Keep the result of a call. False when the call has an outcome, does not exist, or a later fence has one.

        Raises:
            StorageUnavailableError: it cannot be kept now.
        """
        ...

    async def fetch(self, correlation_id: str, digest: str) -> bytes | None:
        """The result with this digest; None when there is none. Raises StorageUnavailableError."""
        ...


class LargeResults:
    """The large results of the calls of all engines that share the store."""

    def __init__(self, store: LargeResultStore, keys: RequestKeys, cipher: Cipher, *, reachable: bool) -> None:
        """`reachable`: whether engines have a port at which workers can send them."""
        self.taken = reachable and bool(keys)
        """Whether workers may send the results of the calls of this engine."""
        self._store = store
        self._keys = keys
        self._cipher = cipher
        self.places = asyncio.Semaphore(AT_ONCE)
        """Whoever takes one from a worker holds a place from before its body is read."""
        self._reading = asyncio.Semaphore(AT_ONCE)

    def are_signed(self, correlation_id: str, fence: int, digest: str, signature: str) -> bool:
        """Whether a worker sends it, by what is in the head of its request."""
        return large_results.is_signed(self._keys, correlation_id, fence, digest, signature)

    async def take(self, correlation_id: str, fence: int, digest: str, body: bytes) -> bool:
        """Keep the result of a call. False when the call waits for none from this worker any more.

        Raises:
            ValueError: the body is not the one that was signed, or has no outcome.
            StorageUnavailableError: it cannot be kept now.
        """
        data = await asyncio.to_thread(self._checked, correlation_id, digest, body)
        return await self._store.keep(correlation_id, fence, digest, data)

    async def whole(self, correlation_id: str, outcome: ToolOutcome) -> ToolOutcome:
        """The outcome that this one was sent in place of; itself if it is whole. Waits while the store is away.

        It keeps the digest, so that what is kept goes when it is committed.
        """
        if not outcome.kept:
            return outcome
        async with self._reading:
            if (data := await self._fetched(correlation_id, outcome.kept)) is None:
                log.error("the result of call %s is not in the store", correlation_id)
                return msgspec.structs.replace(outcome, content=(TextBlock(_GONE),), kept="")
            whole = await asyncio.to_thread(msgspec.json.decode, data, type=ToolOutcome)
        return msgspec.structs.replace(whole, kept=outcome.kept)

    async def _fetched(self, correlation_id: str, digest: str) -> bytes | None:
        while True:
            try:
                return await self._store.fetch(correlation_id, digest)
            except StorageUnavailableError as error:
                log.warning("the result of call %s waits for the store: %s", correlation_id, error)
            await asyncio.sleep(AGAIN_SECONDS)

    def _checked(self, correlation_id: str, digest: str, body: bytes) -> bytes:
        """The outcome in a body, as JSON."""
        if large_results.digest_of(body) != digest:
            raise ValueError("it is not the body of this digest")
        return msgspec.json.encode(large_results.read(body, correlation_id, self._cipher))
