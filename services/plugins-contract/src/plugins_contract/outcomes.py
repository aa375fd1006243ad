"""What comes back for a tool call: the states of the ledger and the messages of the response channel."""

from enum import StrEnum

import msgspec

from plugins_contract.errors import ErrorCode


class CallState(StrEnum):
    """The states of a tool call in the ledger. All but the first two are final."""

    PUBLISHED = "published"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Started, and nobody can tell whether it took effect."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DEAD = "dead"
    """Could not be handled at all; kept in the dead-letter stream."""

    @property
    def terminal(self) -> bool:
        """Whether the state is final."""
        return self not in (CallState.PUBLISHED, CallState.STARTED)


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class TextBlock(_Wire, frozen=True, tag_field="type", tag="text"):
    """Text. `user_only`, here as in other blocks: the tool means it for the user, and the model is not told."""

    text: str
    user_only: bool = False


class MediaBlock(_Wire, frozen=True, tag_field="type", tag="media"):
    """An image, a sound, or a file of another kind; `data` is base64 (RFC 4648), `uri` the resource that it is."""

    mime_type: str
    data: str
    uri: str | None = None
    user_only: bool = False

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self.data) * 3 // 4 - self.data[-2:].count("=")


class LinkBlock(_Wire, frozen=True, tag_field="type", tag="link"):
    """A resource that the tool points at without including it; `size` is in bytes, where the tool says it."""

    uri: str
    name: str
    mime_type: str | None = None
    description: str | None = None
    title: str | None = None
    size: int | None = None
    user_only: bool = False


class CutBlock(_Wire, frozen=True, tag_field="type", tag="cut"):
    """Stands where the engine left text out, which it keeps.

    `characters` of `total` are left out here, from `offset` on; `result_id` is the name to ask for them by.
    """

    result_id: str
    offset: int
    characters: int
    total: int


ContentBlock = TextBlock | MediaBlock | LinkBlock | CutBlock


class ToolError(_Wire, frozen=True):
    """Why a call did not succeed, in words that the model and the user may read."""

    code: ErrorCode
    message: str


class ToolOutcome(_Wire, frozen=True):
    """The one terminal answer to a tool call.

    `state` is terminal; `error` is set unless it is `succeeded`. `content` may be there either way: of a tool that
    failed it is all that it said, of which the error's message may be the beginning. `duration_ms` counts the
    execution in the worker. `truncated` says that this is not all of the content.
    """

    state: CallState
    content: tuple[ContentBlock, ...] = ()
    error: ToolError | None = None
    duration_ms: int = 0
    attempts: int = 0
    truncated: bool = False

    @classmethod
    def failure(
        cls, state: CallState, code: ErrorCode, message: str, *, duration_ms: int = 0, attempts: int = 0
    ) -> "ToolOutcome":
        """An outcome that carries an error and no content."""
        return cls(state=state, error=ToolError(code, message), duration_ms=duration_ms, attempts=attempts)


class CallStarted(_Wire, frozen=True, tag_field="kind", tag="started"):
    """A worker has begun; `attempt` counts from 1."""

    attempt: int = 1


class CallProgress(_Wire, frozen=True, tag_field="kind", tag="progress"):
    """The tool's own account of how far it is; `total` is unknown when None."""

    progress: float
    total: float | None = None
    message: str | None = None


class CallFinished(_Wire, frozen=True, tag_field="kind", tag="finished"):
    """The terminal entry of a response channel."""

    outcome: ToolOutcome


CallReply = CallStarted | CallProgress | CallFinished
"""What a response channel carries, in this order: started and progress any number of times, then finished once."""
