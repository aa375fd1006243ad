"""What flows through the pipeline: one frozen value per turn; each processor returns the next."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dialog_engine.model import FinishReason, Message, ToolCall, Turn, Usage
from dialog_engine.sideband import Reply, SideBand
from dialog_engine.tool_calls.ports import StreamChat
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import ToolOutcome


@dataclass(frozen=True, slots=True)
class CallResult:
    """A tool call of this round with its terminal outcome; `edited` are the arguments of who approved it, if others."""

    call: ToolCall
    outcome: ToolOutcome
    edited: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Answer:
    """How the conversation with the model ended."""

    finish_reason: FinishReason
    usage: Usage


@dataclass(frozen=True, slots=True)
class TurnContext:
    """The state of one turn between two processors.

    `depth` counts the rounds of tool calls that are behind it. `last` is set when no more calls may be made, and says
    why: this reply is the answer. `catalog` is all the tools there are, `tools` those that the model is offered.
    `problems` says, by correlation id, why calls of the reply cannot be run as written. `cut`: the reply was cut off
    before any of its calls was complete. Nothing of that is stored: the next life of a turn tries once more.
    """

    turn: Turn
    llm: StreamChat
    band: SideBand
    messages: tuple[Message, ...]
    catalog: tuple[ToolEntry, ...] | None = None
    tools: tuple[ToolEntry, ...] = ()
    depth: int = 0
    last: FinishReason | None = None
    reply: Reply = Reply()
    calls: tuple[ToolCall, ...] = ()
    problems: Mapping[str, str] = field(default_factory=dict[str, str])
    cut: bool = False
    results: tuple[CallResult, ...] = ()
    usage: Usage = Usage()
    answer: Answer | None = None
    committed: asyncio.Event | None = None
    """Of a turn that is just being committed: nothing is written before it is set."""
