"""The UI message stream of the Vercel AI SDK: the chunks that it reads.

`tests/e2e/test_stack_ai_sdk.py` holds them against the package `ai`. A chunk of an unknown type ends its chat with an
error; unknown fields are ignored, and so are `data-…` chunks that a page has no use for.
"""

from typing import Any, Literal, NotRequired, TypedDict

AskedName = Literal["data-approval", "data-question"]
FinishReason = Literal["stop", "length", "content-filter", "tool-calls", "error", "other"]


class Start(TypedDict):
    """Begins the message, or goes on with the message of that id."""

    type: Literal["start"]
    messageId: str
    messageMetadata: NotRequired[dict[str, Any]]


class Plain(TypedDict):
    """A chunk without fields."""

    type: Literal["start-step", "finish-step", "reset-step", "abort"]


class PartEdge(TypedDict):
    """The beginning or the end of a part."""

    type: Literal["text-start", "text-end", "reasoning-start", "reasoning-end"]
    id: str


class PartDelta(TypedDict):
    """A piece of a part."""

    type: Literal["text-delta", "reasoning-delta"]
    id: str
    delta: str


class ToolInput(TypedDict):
    """A call with its arguments. `dynamic`: its tool is not one of the page; `providerExecuted`: it runs here. A call
    without both is the page's to run."""

    type: Literal["tool-input-available"]
    toolCallId: str
    toolName: str
    input: Any
    dynamic: NotRequired[Literal[True]]
    providerExecuted: NotRequired[Literal[True]]
    title: NotRequired[str]


class ToolOutput(TypedDict):
    """What a call has returned, or its progress so far."""

    type: Literal["tool-output-available"]
    toolCallId: str
    output: Any
    dynamic: Literal[True]
    providerExecuted: Literal[True]
    preliminary: NotRequired[Literal[True]]


class ToolError(TypedDict):
    """Why a call has no result."""

    type: Literal["tool-output-error"]
    toolCallId: str
    errorText: str
    dynamic: NotRequired[Literal[True]]
    providerExecuted: NotRequired[Literal[True]]


class ToolDenied(TypedDict):
    """A person has refused the call. From version 6 on."""

    type: Literal["tool-output-denied"]
    toolCallId: str


class ApprovalRequest(TypedDict):
    """A person must approve the call. From version 6 on."""

    type: Literal["tool-approval-request"]
    approvalId: str
    toolCallId: str


class ApprovalResponse(TypedDict):
    """What the person has said. Version 7."""

    type: Literal["tool-approval-response"]
    approvalId: str
    approved: bool
    reason: NotRequired[str]


class File(TypedDict):
    """An image, a sound or a file of a result."""

    type: Literal["file"]
    url: str
    mediaType: str


class Data(TypedDict):
    """A part of our own, which another one of the same type and id replaces."""

    type: AskedName
    id: str
    data: dict[str, Any]


class Finish(TypedDict):
    """The end of the stream."""

    type: Literal["finish"]
    finishReason: FinishReason
    messageMetadata: NotRequired[dict[str, Any]]


class Error(TypedDict):
    """The turn has failed."""

    type: Literal["error"]
    errorText: str


Chunk = (
    Start
    | Plain
    | PartEdge
    | PartDelta
    | ToolInput
    | ToolOutput
    | ToolError
    | ToolDenied
    | ApprovalRequest
    | ApprovalResponse
    | File
    | Data
    | Finish
    | Error
)
"""What the stream consists of."""
