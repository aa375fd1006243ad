"""`dialog.control`: engines wake each other. The state is in the store, which each engine reads once a second anyway,
so a lost message costs a second. Of the readers of turns there is no state: `chat.leaving` says what is asked."""

import contextlib
import logging
from collections.abc import Callable

import msgspec
from redis.asyncio import Redis

from callstream_runtime.background import BackgroundTasks
from callstream_runtime.loops import follow
from callstream_runtime.redis_errors import RedisUnavailable
from dialog_engine.chat.ports import Control
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE

log = logging.getLogger(__name__)


class _Message(msgspec.Struct, rename="camel", omit_defaults=True):
    kind: str
    turn_id: str = ""
    session_id: str = ""
    within: float = 0
    """In seconds."""


class ControlPublisher(Control):
    """Publishes in the background, without waiting for Redis."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys
        self._sending = BackgroundTasks()

    def stop(self, turn_id: str) -> None:
        self._send(_Message("stop", turn_id=turn_id))

    def decision(self) -> None:
        self._send(_Message("decision"))

    def free(self, session_id: str) -> None:
        self._send(_Message("free", session_id=session_id))

    def who_reads(self, turn_id: str, within: float) -> None:
        self._send(_Message("who_reads", turn_id=turn_id, within=within))

    def reads(self, turn_id: str) -> None:
        self._send(_Message("reads", turn_id=turn_id))

    def sessions_changed(self) -> None:
        self._send(_Message("sessions"))

    async def close(self) -> None:
        """Wait for the messages that are being published, for a bounded time."""
        await self._sending.close()

    def _send(self, message: _Message) -> None:
        self._sending.start(self._publish(message), f"control message {message.kind}")

    async def _publish(self, message: _Message) -> None:
        with contextlib.suppress(RedisUnavailable):
            await self._redis.publish(self._keys.engines, msgspec.json.encode(message))


class ControlListener:
    """Receives the messages of all engines. `redis` is a blocking client made for `LISTEN_SECONDS`."""

    def __init__(
        self,
        redis: Redis,
        keys: Keys,
        on_stop: Callable[[str], None],
        on_decision: Callable[[], None],
        on_free: Callable[[str], None],
        on_sessions: Callable[[], None],
        on_who_reads: Callable[[str, float], None],
        on_reads: Callable[[str], None],
    ) -> None:
        self._redis = redis
        self._keys = keys
        self._on_stop = on_stop
        self._on_decision = on_decision
        self._on_free = on_free
        self._on_sessions = on_sessions
        self._on_who_reads = on_who_reads
        self._on_reads = on_reads

    async def run(self) -> None:
        """Runs until cancelled."""
        await follow(self._redis, self._keys.engines, self._receive)

    def _receive(self, data: bytes | None) -> None:
        if data is None:
            return
        try:
            message = msgspec.json.decode(data, type=_Message)
        except NOT_READABLE:
            log.warning("a control message cannot be read: %.100r", data)
            return
        match message.kind:
            case "stop":
                self._on_stop(message.turn_id)
            case "decision":
                self._on_decision()
            case "free":
                self._on_free(message.session_id)
            case "sessions":
                self._on_sessions()
            case "who_reads":
                self._on_who_reads(message.turn_id, message.within)
            case "reads":
                self._on_reads(message.turn_id)
            case _:
                pass  # of a later release
