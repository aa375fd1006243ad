"""Entries of the stream that this worker cannot run: left to workers of a newer release, or made dead letters."""

import logging

from redis.exceptions import ResponseError

from callstream_runtime.redis_errors import RedisUnavailable
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import WorkerLedger
from plugins_contract.messages import NewerEventError, RequestHeader, UnsupportedEventError
from plugins_mcp.adoption import NOT_SIGNED, return_address
from plugins_mcp.ports import Observer, PoolFinder

log = logging.getLogger(__name__)


class UnusableEntries:
    """Decides about the entries of an engine that one consumer cannot use."""

    def __init__(
        self, ledger: WorkerLedger, keys: Keys, pools: PoolFinder, observer: Observer, *, consumer: str, lease_ms: int
    ) -> None:
        self._ledger = ledger
        self._keys = keys
        self._pools = pools
        self._observer = observer
        self._consumer = consumer
        self._lease_ms = lease_ms

    async def not_signed(self, stream: str, entry: str, fields: dict[bytes, bytes]) -> None:
        """The entry is not signed with a key of this worker."""
        await self._bury(stream, entry, fields, NOT_SIGNED, ErrorCode.PERMISSION_DENIED)

    async def not_readable(
        self, stream: str, entry: str, fields: dict[bytes, bytes], error: UnsupportedEventError
    ) -> bool:
        """The request cannot be read. False when it is left to workers of a newer release."""
        if isinstance(error, NewerEventError) and await self._leave_to_newer(stream, entry, error.header):
            return False
        await self._bury(stream, entry, fields, str(error), ErrorCode.UNKNOWN_ERROR)
        return True

    async def _leave_to_newer(self, stream: str, entry: str, header: RequestHeader) -> bool:
        """Leave a request to workers of a newer release. False when its deadline has passed: none was there."""
        pool = await self._pools.find(header.server, header.event_version)
        return await self._ledger.leave(
            header.correlation_id, entry, self._consumer, stream, to=pool, lease_ms=self._lease_ms
        )

    async def _bury(self, stream: str, entry: str, fields: dict[bytes, bytes], reason: str, code: ErrorCode) -> None:
        call = return_address(fields, self._keys)
        ids = call.log_ids | ({"code": str(code)} if code is ErrorCode.PERMISSION_DENIED else {})
        log.warning("entry %s becomes a dead letter: %s", entry, reason, extra=ids)
        self._observer.dead_letter("call")
        event = fields.get(b"event", b"")
        try:
            await self._ledger.bury(
                entry, reason, event, call.correlation_id, code=code, tool_call_id=call.tool_call_id, stream=stream
            )
        except ResponseError as error:
            if isinstance(error, RedisUnavailable):
                raise
            # It stays pending; other entries are processed.
            log.exception("entry %s cannot be made a dead letter", entry)
