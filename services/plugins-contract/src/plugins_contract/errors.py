"""Error codes that travel in outcomes, to the model, to the browser and to metrics."""

from enum import StrEnum


class ErrorCode(StrEnum):
    """Why a tool call did not succeed. Stable: clients and dashboards match on these words."""

    TOOL_NOT_FOUND = "TOOL_NOT_FOUND"
    TOOL_EXECUTION_FAILED = "TOOL_EXECUTION_FAILED"
    """The tool ran and reported a failure."""
    RESOURCE_NOT_FOUND = "RESOURCE_NOT_FOUND"
    PROMPT_NOT_FOUND = "PROMPT_NOT_FOUND"
    MODEL_ERROR = "MODEL_ERROR"
    NETWORK_ERROR = "NETWORK_ERROR"
    """The MCP server could not be reached; the call was not executed, or may be repeated safely."""
    PERMISSION_DENIED = "PERMISSION_DENIED"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"
    TIMEOUT = "TIMEOUT"
    CANCELLED = "CANCELLED"
    OUTCOME_UNKNOWN = "OUTCOME_UNKNOWN"
    """The call was started, and it is unknown whether it took effect. It is never retried silently."""
    INVALID_ARGUMENTS = "INVALID_ARGUMENTS"
    NOT_APPROVED = "NOT_APPROVED"
    """The call needed a person's approval, which was refused or not given in time. It was not run."""
    APPROVAL_REQUIRED = "APPROVAL_REQUIRED"
    """The policy of the worker asks for a person's approval, and the request has none for its arguments. Not run."""
    REPEATED = "REPEATED"
    """The model repeated a call that had the same result several times in one turn. The repetition was not run."""
    DISABLED = "DISABLED"
    OVERLOADED = "OVERLOADED"
    LOST = "LOST"
    """Redis lost the call (a flush, a deleted entry, a failover): `failed` when it was not run, or may be repeated;
    `unknown` when it may have taken effect."""
    INPUT_REFUSED = "INPUT_REFUSED"
    """The server asked for something that nobody here is asked for; the message says what it wanted."""
    INPUT_EXPIRED = "INPUT_EXPIRED"
    """The server does not know the state of its question any more, or nobody answered the question in time."""
