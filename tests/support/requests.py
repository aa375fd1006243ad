"""A request for a call, as engines put it into the stream."""

from typing import Any

import msgspec

from plugins_contract.keys import Keys
from plugins_contract.messages import ExecutionClass, ToolCallRequested, new_id

ENGINE = "engine-1"


def requested(keys: Keys | None = None, engine: str = ENGINE, **fields: Any) -> ToolCallRequested:
    """A request for a new call of `demo__add`, except for these fields."""
    correlation_id, keys = new_id(), keys or Keys()
    usual = ToolCallRequested(
        correlation_id=correlation_id, session_id="session", turn_id="turn", turn=1, tool_call_id="call_1",
        tool_name="demo__add", server="demo", tool="add", arguments={"a": 1},
        response_channel=keys.response(correlation_id), mailbox=keys.mailbox(engine), deadline=1_030_000,
        execution_class=ExecutionClass.ONCE, subject="somebody",
    )  # fmt: skip
    return msgspec.structs.replace(usual, **fields)
