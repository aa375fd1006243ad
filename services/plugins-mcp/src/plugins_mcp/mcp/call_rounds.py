"""A tool call, which may take several requests.

The SDK's `Client` does the same for the session that it opens itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from mcp import ClientSession, MCPError
from mcp.client import ClientRequestContext, InputRequiredRoundsExceededError
from mcp.shared.dispatcher import ProgressFnT
from mcp.types import HEADER_MISMATCH, CallToolResult, ErrorData, InputRequiredResult, RequestParamsMeta
from mcp.types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError

MAX_INPUT_ROUNDS = 10
"""How often the server may answer that the call is to be sent again with the state that it returned."""
INPUT_PAUSE_SECONDS = 0.1


async def call_in_rounds(
    session: ClientSession,
    tool: str,
    arguments: dict[str, Any],
    report: ProgressFnT,
    meta: RequestParamsMeta | None,
    *,
    list_again: Callable[[], Awaitable[object]],
) -> CallToolResult:
    """The result of a call. `list_again` lists the tools in this session.

    Raises:
        MCPError, ValidationError, RuntimeError: see `ClientSession.call_tool`.
        InputRequiredRoundsExceededError: the server has asked for the call too often.
    """

    async def send(state: str | None) -> CallToolResult | InputRequiredResult:
        return await session.call_tool(
            tool, arguments, progress_callback=report, meta=meta, request_state=state, allow_input_required=True
        )

    async def send_with_current_fields(state: str | None) -> CallToolResult | InputRequiredResult:
        try:
            return await send(state)
        except MCPError as mismatch:
            if mismatch.code != HEADER_MISMATCH or session.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                raise
            try:
                await list_again()  # header fields are made from the schema, which has changed since it was listed
            except (MCPError, ValidationError):
                raise mismatch from None
            return await send(state)

    state = None
    for _ in range(1 + MAX_INPUT_ROUNDS):
        result = await send_with_current_fields(state)
        if isinstance(result, CallToolResult):
            return result
        for key, asked in (result.input_requests or {}).items():
            context = ClientRequestContext(session=session, request_id=key)
            declined = await session.dispatch_input_request(context, asked)
            if isinstance(declined, ErrorData):  # always: a worker has no user, no model and no files
                raise MCPError.from_error_data(declined)
        state = result.request_state
        await asyncio.sleep(INPUT_PAUSE_SECONDS)
    raise InputRequiredRoundsExceededError(MAX_INPUT_ROUNDS)
