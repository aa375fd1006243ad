"""What is known of a request that starts something, by which one that repeats it is found."""

import asyncio
import logging
from dataclasses import dataclass
from typing import Protocol

from callstream_runtime.outage_log import OutageLog
from dialog_engine.errors import StorageUnavailableError
from dialog_engine.tool_calls.values import AnswerKey

log = logging.getLogger(__name__)

FORGET_SECONDS = 60.0
MAX_NAME = 200
"""The characters of a name that a client has chosen for a conversation."""


@dataclass(frozen=True, slots=True)
class SessionName:
    """What clients of a protocol call a session: one of its subject, whatever another protocol or subject calls so."""

    protocol: str
    name: str


@dataclass(frozen=True, slots=True)
class StartingRequest:
    """What a client says of a request. A field is empty where it says nothing, and nothing is kept by it then."""

    key: str = ""
    """Its `Idempotency-Key`, which stands for `content`."""
    content: str = ""
    """A digest of its method, path and body. Without a key the request is found by it."""
    repeated: bool = False
    """Whether the client says that it has sent it before."""
    message_id: str = ""
    """The client's own name for the message, which stands for its text and what was chosen with it."""
    session_name: SessionName | None = None
    """The client's own name for the session, if the request begins one."""


class SentRequests(Protocol):
    """The requests that the store knows. Every method raises StorageUnavailableError."""

    async def check_new(self, subject: str, request: StartingRequest) -> None:
        """Check that the subject has not sent it before, by its key or, if it is repeated, by its content.

        Raises:
            SentBeforeError: it has.
            IdempotencyKeyReusedError: it has used the key for another request.
        """
        ...

    async def keep_answer(self, turn_id: str, answer_key: AnswerKey) -> None:
        """Keep the key of a request that has answered calls of a turn, if it is not kept: all of them may have been
        answered before. Raises IdempotencyKeyReusedError."""
        ...

    async def forget(self) -> int:
        """Delete some of those that are not kept any longer. Returns how many."""
        ...


async def run_forgetting(requests: SentRequests) -> None:
    """Forget what is no longer kept, every FORGET_SECONDS until cancelled. Any number of engines may do so."""
    outages = OutageLog(log, "forgetting the requests that were sent")
    while True:
        try:
            while await requests.forget():
                pass
            outages.worked()
        except StorageUnavailableError as error:
            outages.failed(error)
        await asyncio.sleep(FORGET_SECONDS)
