"""What the pipeline needs from the world. Adapters elsewhere name these as their bases."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Protocol

from dialog_engine.model import AssistantMessage, CallUpdate, ChatEvent, ChatRequest, ToolCall, Turn, Usage
from dialog_engine.tool_calls.questions import ApprovalState, Asked, Decision, Question
from dialog_engine.tool_calls.texts import WholeResult
from plugins_contract.catalog import ToolEntry
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolError, ToolOutcome

NOTHING_ASKED: Mapping[str, Question] = {}
NOWHERE: Mapping[str, str] = {}
NOTHING_SPENT = Usage()

OWN_SERVER = "callstream"
"""What users are shown in place of an MCP server, for tools of the engine's own."""


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
    """Where rounds and results are committed. Every write raises TurnFencedError when another engine runs the turn."""

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
        questions: Mapping[str, Question] = NOTHING_ASKED,
        servers: Mapping[str, str] = NOWHERE,
        *,
        cost: Usage = NOTHING_SPENT,
    ) -> int:
        """Commit the assistant's message with its calls and an outbox row per request, all or nothing.

        By correlation id, `answered` holds the outcomes of calls that are not requested, `questions` what is asked
        about those that wait for approval: they have no outbox row. `servers` says who ran those of the answered that
        were run. `cost` is that of the message; it is added to the turn's. Returns the message's id.
        """
        ...

    async def add_result(
        self, turn: Turn, call: ToolCall, outcome: ToolOutcome, whole: WholeResult | None = None
    ) -> bool:
        """Commit the terminal outcome of one call, with the whole text of it where `outcome` has a part only.

        False when it had one before: the first stands.
        """
        ...


MakeRequest = Callable[[Turn], ToolCallRequested]
"""Makes the request of an approved call of this turn. Pure; its mailbox is that of the turn's owner in the end."""


class ApprovalStore(Protocol):
    """Where the approvals of committed calls are. `waiting` and `close` are for the turn's owner, and raise
    TurnFencedError when another engine runs it; any engine may decide."""

    async def waiting(self, turn: Turn) -> Sequence[Asked]:
        """The calls of the turn that wait for approval."""
        ...

    async def states(self, correlation_ids: Sequence[str]) -> Sequence[ApprovalState]:
        """What is committed of these calls; of a call that is gone, nothing."""
        ...

    async def decide(
        self,
        turn_id: str,
        asked: Asked,
        decision: Decision,
        request: MakeRequest | None,
        outcome: ToolOutcome | None,
    ) -> bool:
        """Commit a decision, with the request that runs the call or the outcome that answers it, all or nothing.

        False when that question does not stand any more: it was decided before, put anew, its call has its outcome, or
        its turn does not run.
        """
        ...

    async def ask_again(self, turn_id: str, asked: Asked, question: Question) -> bool:
        """Put another question in the place of this one, which is still undecided. False when it is not."""
        ...

    async def close(self, turn: Turn, outcome: ToolOutcome) -> Sequence[Asked]:
        """Give every call of the turn that still waits this outcome: from here on nothing can be approved."""
        ...


class ToolCalls(Protocol):
    """Durable execution of tool calls."""

    def request(self, turn: Turn, call: ToolCall, tool: ToolEntry, arguments: dict[str, Any]) -> ToolCallRequested:
        """The request that would run `call`, with its deadline. Pure: nothing is sent."""
        ...

    def run(self, requests: Sequence[ToolCallRequested], *, late: bool = False) -> AsyncGenerator[CallUpdate]:
        """See committed requests through: what becomes of each, until every one is answered. `late`: they were
        committed some time ago, by this engine or another, so that they may be answered by now.

        The generator must be closed before the same requests are cancelled or seen through again.
        """
        ...

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        """End committed requests on the user's behalf: what really became of each, by correlation id.

        What was not begun never will be. What was is cancelled at the MCP server; when no worker answers in time its
        outcome is unknown, and said to be so.
        """
        ...
