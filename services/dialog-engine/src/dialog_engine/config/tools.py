"""How tools are offered to the model, called and answered."""

from typing import Literal

from pydantic import Field

from callstream_runtime.settings_sources import Subject
from plugins_contract.messages import MAX_TIMEOUT_MS


class ToolSettings(Subject):
    """Which tools there are, and the limits of their calls and results."""

    accept_unsigned_catalogs: bool = Field(
        False,
        description="With REQUEST_KEYS_FILE: also believe catalogs that are not signed, while older workers run.",
    )
    enable_mcp: bool = Field(True, description="Offer tools. When false, every tool call is answered with DISABLED.")
    tools_wait_seconds: float = Field(
        30, ge=0, description="How long a starting engine waits for MCP servers before it is ready."
    )
    mcp_request_timeout_ms: int = Field(
        30_000,
        ge=100,
        le=MAX_TIMEOUT_MS,
        description="Timeout of a tool call, unless the configuration of its server sets another.",
    )
    tool_mode: Literal["auto", "native", "tool_use", "function_calls"] = Field(
        "auto",
        description="How the model calls tools: native is function calling, tool_use and function_calls are tags in its"
        " text, auto is native until the provider rejects tools.",
    )
    allow_tool_mode: bool = Field(False, description="Whether a request may choose another TOOL_MODE.")
    tool_stop_sequence: bool = Field(
        True, description="With tags: stop the model after its first block of calls, so that it cannot invent results."
    )
    max_calls_per_reply: int = Field(64, ge=1, description="Tool calls of one reply of the model that are run.")
    max_calls_per_turn: int = Field(256, ge=1, description="Tool calls of one answer; then the model must answer.")
    max_own_calls_per_turn: int = Field(
        32, ge=1, description="Calls of the engine's own tools, such as tool_search, in one answer."
    )
    mcp_max_tool_rounds: int = Field(
        5, ge=1, le=100, description="Largest number of rounds of tool calls before the last answer."
    )
    tool_exposure: Literal["direct", "gateway", "search", "auto"] = Field(
        "auto",
        description="How tools are offered: direct, each with its schema; gateway, one tool for all; search, the model"
        " searches for them; auto, direct if the schemas fit TOOL_BUDGET_TOKENS, otherwise search.",
    )
    tool_budget_tokens: int = Field(
        12_000, ge=500, description="Largest number of tokens for MCP tools in a request to the model."
    )
    server_instructions_tokens: int = Field(
        2_000,
        ge=0,
        description="Largest number of tokens for what MCP servers say about their tools, in each request; 0: nothing.",
    )
    result_max_chars: int = Field(
        16_000,
        ge=1_000,
        description="Characters of a tool result sent to the model, which can request the rest.",
    )
    approval_timeout_seconds: float = Field(
        3600, gt=0, description="How long a tool call waits for its approval before it is refused."
    )
    question_timeout_seconds: float = Field(
        86_400, gt=0, le=30 * 86_400, description="How long a question of an MCP server waits for a person's answer."
    )
    client_tool_timeout_seconds: float = Field(
        86_400,
        gt=0,
        le=30 * 86_400,
        description="How long a call of a tool that a request has brought waits for the client's result.",
    )
