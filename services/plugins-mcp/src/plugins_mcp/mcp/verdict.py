"""What an exception from the SDK says about a tool call. Pure.

Codes decide little: -32000, -32001 and -32600 are sent by healthy servers too. What counts is whether the call left,
whether the connection was lost meanwhile, and what HTTP said.
"""

import re

from mcp import MCPError
from mcp.types import CONNECTION_CLOSED, HEADER_MISMATCH, INVALID_PARAMS, METHOD_NOT_FOUND, PARSE_ERROR

from plugins_contract.errors import ErrorCode
from plugins_mcp.mcp.calls import Ambiguous, CallResult, NotSent, Rejected, RetryLater
from plugins_mcp.mcp.flight import Flight

FAILED_TO_PARSE = "Failed to parse"
"""How the SDK's words for an answer that it cannot read begin, and ours."""
_UNKNOWN_TOOL = re.compile(
    r"\b(unknown|no such)\b.{0,20}\btool\b|\btool\b.{0,200}\b(not found|unknown|not exist|not available)",
    re.IGNORECASE | re.DOTALL,
)


def verdict(error: Exception, flight: Flight, *, lost: bool) -> CallResult:
    """What is known about a call that ended with `error`; `lost` says that its connection ended as well."""
    known = _known(error, flight, lost=lost)
    if flight.rounds > 1 and isinstance(known, NotSent | RetryLater):
        # The server had begun and asked for input: only the last round was not run.
        return Ambiguous(f"after the server had begun: {known.reason}")
    return known


def _known(error: Exception, flight: Flight, *, lost: bool) -> CallResult:
    if flight.finding is not None:
        return flight.finding
    if not flight.sent:
        return NotSent(str(error) or type(error).__name__)
    if not isinstance(error, MCPError):
        return Ambiguous(f"the answer cannot be read: {type(error).__name__}")
    if flight.answered and error.code != HEADER_MISMATCH:
        return Ambiguous(f"the server answered, and then failed to list its tools: {error.message}")
    if lost:
        return Ambiguous("the connection was lost during the call")
    if _made_up(error):
        return Ambiguous(error.message.partition("\n")[0])
    return Rejected(_code(error), error.message)


def _made_up(error: MCPError) -> bool:
    """Whether a transport made the error up because no readable answer came.

    It leaves no mark but its words. A server that uses the same words gets the careful reading.
    """
    return (error.code == CONNECTION_CLOSED and error.message.startswith("SSE stream")) or (
        error.code == PARSE_ERROR and error.message.startswith(FAILED_TO_PARSE)
    )


def _code(error: MCPError) -> ErrorCode:
    unknown_tool = error.code == METHOD_NOT_FOUND or _UNKNOWN_TOOL.search(error.message) is not None
    if unknown_tool and error.code in (METHOD_NOT_FOUND, INVALID_PARAMS):
        return ErrorCode.TOOL_NOT_FOUND
    if error.code == INVALID_PARAMS:
        return ErrorCode.INVALID_ARGUMENTS
    return ErrorCode.TOOL_EXECUTION_FAILED
