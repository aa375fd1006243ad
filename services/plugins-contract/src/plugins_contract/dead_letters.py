"""Dead letters as operators see them: requests that could not be handled, why, and what was tried."""

import re
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.encryption import Cipher, DecryptionError, open_request, seal_request
from plugins_contract.keys import Keys
from plugins_contract.ledger import decode_reply, steps
from plugins_contract.ledger.scripts import Scripts, finished
from plugins_contract.messages import (
    EVENT_VERSION,
    NOT_READABLE,
    ExecutionClass,
    ToolCallRequested,
    UnsupportedEventError,
    approve,
    arguments_hash,
    decode_request,
    encode_request,
    new_id,
)
from plugins_contract.outcomes import CallFinished, ToolOutcome
from plugins_contract.signing import RequestKeys

PAGE = 100
OPERATORS = "operators"
"""The mailbox of requeued calls, which no engine reads: their results are stored, and enter no conversation."""


@dataclass(frozen=True, slots=True)
class Happening:
    """One event of a call: `started` by a worker, `released` by it unsent, or `lost` with it."""

    at_ms: int
    what: str
    worker: str


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One dead letter. `event` is the request as it was received; `request` is None when that is not readable."""

    id: str
    reason: str
    correlation_id: str
    entry: str
    """Its id on the stream of requests."""
    worker: str
    """The worker that gave it up."""
    starts: int | None
    """How often it was started; None when that is not known."""
    history: tuple[Happening, ...]
    event: bytes
    request: ToolCallRequested | None
    unreadable: str
    """Why there is no `request`."""
    outcome: ToolOutcome | None
    """The outcome that its caller got; None when no call was known."""

    @property
    def at_ms(self) -> int:
        """When it became a dead letter, in Unix milliseconds on the clock of Redis."""
        return int(self.id.partition("-")[0])

    @property
    def may_have_run(self) -> bool:
        """Whether running it again may run it twice: its class is `once`, and it was or may have been started."""
        return self.request is not None and self.request.execution_class is ExecutionClass.ONCE and self.starts != 0

    def word(self, field: str) -> str:
        """A text field of the request, such as `tool`, even when the rest of it is not readable; '' for none."""
        if self.request is not None:
            return str(getattr(self.request, field))
        try:
            fields = msgspec.json.decode(self.event, type=dict[str, Any])
        except NOT_READABLE:
            return ""
        text = fields.get(field)
        return text if isinstance(text, str) else ""


@dataclass(frozen=True, slots=True)
class Requeued:
    """The request is on the stream again, as a new call."""

    correlation_id: str
    deadline: int


class DeadLetters:
    """Reads, requeues and discards dead letters. Raises what redis raises."""

    def __init__(self, redis: Redis, keys: Keys, request_keys: RequestKeys | None = None, *, cipher: Cipher) -> None:
        self._redis = redis
        self._cipher = cipher
        self._scripts = Scripts(redis)
        self._keys = keys
        self._request_keys = request_keys or RequestKeys()

    async def now_ms(self) -> int:
        """Unix milliseconds on the clock of Redis."""
        seconds, microseconds = await _answer(self._redis.time())
        return seconds * 1000 + microseconds // 1000

    async def newest_first(self, *, since_ms: int = 0) -> AsyncGenerator[DeadLetter]:
        """All dead letters since the time `since_ms`, the newest first."""
        last = "+"
        while True:
            page: Any = await self._redis.xrevrange(self._keys.dead, last, str(since_ms), count=PAGE)
            for letter_id, fields in page:
                yield read_letter(letter_id.decode(), fields, self._cipher)
            if len(page) < PAGE:
                return
            last = f"({page[-1][0].decode()}"

    async def find(self, name: str) -> DeadLetter | None:
        """The dead letter with this id, or the newest one of the call with this correlation id."""
        if _is_letter_id(name):
            page: Any = await self._redis.xrange(self._keys.dead, name, name)
            return read_letter(page[0][0].decode(), page[0][1], self._cipher) if page else None
        async for letter in self.newest_first():
            # An empty name matches no letter, though there are letters without a correlation id.
            if name and letter.correlation_id == name:
                return letter
        return None

    async def requeue(self, letter: DeadLetter, new: ToolCallRequested) -> Requeued | None:
        """Put `new` on the stream and delete the letter, in one step. None when the letter was gone already.

        It may be repeated with the same `new` when its answer was lost.
        """
        original = letter.request or new
        event = encode_request(new)
        answer = await self._scripts.run(
            steps.requeue(
                dead=self._keys.dead,
                requests=self._keys.requests,
                call=self._keys.call(new.correlation_id),
                dead_call=self._keys.call(original.correlation_id),
                letter=letter.id,
                event=letter.event,
                id_=new.correlation_id,
                hash_=arguments_hash(new),
                class_=new.execution_class,
                deadline=new.deadline,
                mailbox=new.mailbox,
                new_event=event,
                signature=self._request_keys.sign(event, has_ledger=True),
                dead_id=original.correlation_id,
            )
        )
        return Requeued(new.correlation_id, new.deadline) if answer[0] == b"QUEUED" else None

    async def discard(self, letter: DeadLetter) -> bool:
        """Delete it. False when it was gone already."""
        answer = await self._scripts.run(steps.discard(dead=self._keys.dead, letter=letter.id, event=letter.event))
        return answer[0] == b"OK"

    async def outcome(self, correlation_id: str) -> ToolOutcome | None:
        """How a call ended; None while it is open."""
        entry: Any = await _answer(self._redis.hget(self._keys.call(correlation_id), "answer"))
        if entry is None:
            return None
        rows: Any = await self._redis.xrange(self._keys.response(correlation_id), entry, entry)
        return finished(rows[0][1][b"reply"] if rows else b"", correlation_id, self._cipher)

    def again(self, request: ToolCallRequested, *, deadline: int, approved_by: str = "") -> ToolCallRequested:
        """The same request as a new call, with another deadline. It is encrypted again if there is a key.

        An earlier approval does not count: anybody who can write to Redis can write dead letters.
        """
        correlation_id = new_id()
        again = msgspec.structs.replace(
            request,
            event_version=EVENT_VERSION,
            correlation_id=correlation_id,
            response_channel=self._keys.response(correlation_id),
            mailbox=self._keys.mailbox(OPERATORS),
            deadline=deadline,
            sealed=msgspec.UNSET,
        )
        return seal_request(approve(again, approved_by), self._cipher)


def read_letter(letter_id: str, fields: dict[bytes, bytes], cipher: Cipher) -> DeadLetter:
    """A dead letter from its fields. Those of an earlier release have no history."""

    def text(name: bytes) -> str:
        return fields.get(name, b"").decode(errors="backslashreplace")

    event = fields.get(b"event", b"")
    request, unreadable = None, ""
    try:
        request = open_request(decode_request(event), cipher)
    except UnsupportedEventError as error:
        unreadable = str(error)
    starts = text(b"starts")
    return DeadLetter(
        id=letter_id,
        reason=text(b"reason"),
        correlation_id=text(b"correlationId"),
        entry=text(b"entry"),
        worker=text(b"worker"),
        starts=int(starts) if starts.isdecimal() else None,
        history=tuple(read_history(text(b"history"))),
        event=event,
        request=request,
        unreadable=unreadable,
        outcome=_outcome(fields.get(b"reply", b""), text(b"correlationId"), cipher),
    )


def read_history(text: str) -> list[Happening]:
    """The history that the ledger keeps of a call, a line for each event."""
    lines = (line.split(" ", 2) for line in text.splitlines())
    return [Happening(int(line[0]), line[1], line[2]) for line in lines if len(line) == 3 and line[0].isdecimal()]


def _outcome(reply: bytes, correlation_id: str, cipher: Cipher) -> ToolOutcome | None:
    try:
        match decode_reply(reply, correlation_id, cipher=cipher) if reply else None:
            case CallFinished(outcome):
                return outcome
            case _:
                return None
    except (*NOT_READABLE, DecryptionError):
        return None


def _is_letter_id(name: str) -> bool:
    parts = name.split("-")
    return len(parts) == 2 and all(re.fullmatch(r"[0-9]{1,20}", part) and int(part) < 2**64 for part in parts)


async def _answer(answer: Any) -> Any:
    """redis-py types some commands as either awaitable or not."""
    return await answer
