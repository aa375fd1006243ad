"""What comes back for a tool call: the states of the ledger and the messages of the response channel."""

from enum import StrEnum

import msgspec

from plugins_contract.errors import ErrorCode
from plugins_contract.questions import InputRequired


class CallState(StrEnum):
    """The states of a tool call in the ledger. All but the first two are final."""

    PUBLISHED = "published"
    STARTED = "started"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """Started, and it is unknown whether it took effect."""
    EXPIRED = "expired"
    CANCELLED = "cancelled"
    DEAD = "dead"
    """Could not be handled; its request is a dead letter."""
    INPUT_REQUIRED = "input_required"
    """The server has asked: this round of the call has ended, and the call goes on with the next one."""

    @property
    def terminal(self) -> bool:
        """Whether the state is final."""
        return self not in (CallState.PUBLISHED, CallState.STARTED)


class _Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    pass


class TextBlock(_Wire, frozen=True, tag_field="type", tag="text"):
    """Text. `user_only`, here as in other blocks: the tool means it for the user, and the model does not get it."""

    text: str
    user_only: bool = False


class MediaBlock(_Wire, frozen=True, tag_field="type", tag="media"):
    """An image, a sound or another file; `data` is base64 (RFC 4648), `uri` names the resource it comes from.

    In the store of an engine `data` is empty and lies elsewhere, and `stored_size` is its size in bytes.
    """

    mime_type: str
    data: str
    uri: str | None = None
    user_only: bool = False
    stored_size: int = 0

    @property
    def size(self) -> int:
        """The size of the decoded data in bytes."""
        return len(self.data) * 3 // 4 - self.data[-2:].count("=") if self.data else self.stored_size


class LinkBlock(_Wire, frozen=True, tag_field="type", tag="link"):
    """A resource that the tool names without including it; `size` is in bytes, when the tool gives it."""

    uri: str
    name: str
    mime_type: str | None = None
    description: str | None = None
    title: str | None = None
    size: int | None = None
    user_only: bool = False


class CutBlock(_Wire, frozen=True, tag_field="type", tag="cut"):
    """Marks where the engine left out text of a result that it stores.

    `characters` of `total` are left out here, from `offset` on; `result_id` is the name to read them by.
    """

    result_id: str
    offset: int
    characters: int
    total: int


ContentBlock = TextBlock | MediaBlock | LinkBlock | CutBlock


class ToolError(_Wire, frozen=True):
    """Why a call did not succeed, in a text for the model and the user."""

    code: ErrorCode
    message: str


class ToolOutcome(_Wire, frozen=True):
    """The one terminal answer to a tool call.

    `state` is terminal; `error` is set unless it is `succeeded`. A failed call may have `content` too: all that the
    tool returned, of which the error's message may be the beginning. `duration_ms` is the time of the execution in
    the worker. `truncated` means that this is not the whole content. `state_lost`: the server keeps state, and had lost
    what earlier calls left there when this one began. `asked` is set when the state is `input_required`, which ends a
    round and not the call. With `kept` an engine keeps the whole outcome under that digest (`large_results`), and this
    one is sent in its place.
    """

    state: CallState
    content: tuple[ContentBlock, ...] = ()
    error: ToolError | None = None
    duration_ms: int = 0
    attempts: int = 0
    truncated: bool = False
    state_lost: bool = False
    asked: InputRequired | None = None
    kept: str = ""

    @classmethod
    def failure(
        cls, state: CallState, code: ErrorCode, message: str, *, duration_ms: int = 0, attempts: int = 0
    ) -> "ToolOutcome":
        """An outcome that carries an error and no content."""
        return cls(state=state, error=ToolError(code, message), duration_ms=duration_ms, attempts=attempts)


class CallStarted(_Wire, frozen=True, tag_field="kind", tag="started"):
    """A worker has started the call; `attempt` counts from 1."""

    attempt: int = 1


class CallProgress(_Wire, frozen=True, tag_field="kind", tag="progress"):
    """Progress as the tool reports it; `total` is None when the tool does not know it."""

    progress: float
    total: float | None = None
    message: str | None = None


class CallFinished(_Wire, frozen=True, tag_field="kind", tag="finished"):
    """The terminal entry of a response channel."""

    outcome: ToolOutcome


CallReply = CallStarted | CallProgress | CallFinished
"""What a response channel carries, in this order: started and progress any number of times, then finished once."""
