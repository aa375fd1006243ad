"""What the pipeline needs from the world. Adapters elsewhere name these as their bases."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Protocol

from dialog_engine.model import AssistantMessage, CallUpdate, ChatEvent, ChatRequest, ToolCall, Turn
from plugins_contract.catalogue import ToolEntry
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolError, ToolOutcome


class StreamChat(Protocol):
    """A chat model. Closing the generator closes the stream at the provider.

    It raises LLMError when the model cannot be reached or refuses, and ends with StreamEnd otherwise.
    """

    def __call__(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        """Stream the model's reply to `request`."""
        ...


class ToolSource(Protocol):
    """The tools there are."""

    def tools(self) -> tuple[ToolEntry, ...]:
        """What to offer to the model now."""
        ...

    def find(self, name: str) -> ToolEntry | ToolError:
        """The tool behind a name the model used, or why there is none."""
        ...


class CallStore(Protocol):
    """Where rounds and results are committed."""

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
    ) -> int:
        """Commit the assistant's message with its calls and an outbox row per request, all or nothing.

        `answered` holds, by correlation id, the outcomes of the calls that are not requested. Returns the message's id.
        """
        ...

    async def add_result(self, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> bool:
        """Commit the terminal outcome of one call. False when it had one before: the first stands."""
        ...


class ToolCalls(Protocol):
    """Durable execution of tool calls."""

    def request(self, turn: Turn, call: ToolCall, tool: ToolEntry, arguments: dict[str, Any]) -> ToolCallRequested:
        """The request that would run `call`, with its deadline. Pure: nothing is sent."""
        ...

    def run(self, requests: Sequence[ToolCallRequested]) -> AsyncGenerator[CallUpdate]:
        """See committed requests through: what becomes of each, until every one is answered.

        The generator must be closed before the same requests are cancelled or seen through again.
        """
        ...

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        """End committed requests on the user's behalf: what really became of each, by correlation id.

        What was not begun never will be. What was is cancelled at the MCP server; when no worker answers in time its
        outcome is unknown, and said to be so.
        """
        ...
