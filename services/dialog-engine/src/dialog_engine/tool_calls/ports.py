"""The interfaces that the pipeline needs from other packages. Adapters elsewhere name these as their bases."""

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Protocol

from dialog_engine.model import AssistantMessage, CallUpdate, ChatRequest, ToolCall, Turn, Usage
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.values import AnswerKey, ApprovalState, Asked, Committed, Decision, Question, WholeResult
from plugins_contract.catalog import BreakerState, ServerCatalog, ServerState, ToolEntry
from plugins_contract.choice import ToolChoice
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolError, ToolOutcome

NO_QUESTIONS: Mapping[str, Question] = {}
NO_SERVERS: Mapping[str, str] = {}
NO_TITLES: Mapping[str, str] = {}
NO_COST = Usage()

OWN_SERVER = "callstream"
"""The name of the server that users see for the engine's own tools."""


class OpenChat(Protocol):
    """A chat model. It may ask several times, and several models, until one of them begins to answer; from then on the
    answer belongs to the caller. Everything around a model is done at this moment: which one answers, how tools are
    offered.
    """

    async def __call__(self, request: ChatRequest) -> ModelStream:
        """The reply to `request`, as soon as its first event is there.

        Raises:
            LLMError: the model cannot be reached, refuses, or breaks off before its first event.
        """
        ...


class AnswerObserver(AbstractContextManager["AnswerObserver"]):
    """Takes the facts about one request to a model. Open from the request to the end of its answer, and left with the
    LLMError that ended it, if any."""

    def began(self) -> None:
        """The first token has arrived."""

    def completed(self, usage: Usage) -> None:
        """The answer is complete; this is its cost."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """The answer is complete, has failed, or was abandoned."""


class ModelObserver:
    """Takes the facts about the requests to one model. This one ignores them."""

    def request(self, turn: Turn) -> AnswerObserver:
        """A request for `turn` is made."""
        return AnswerObserver()

    def retried(self, times: int) -> None:
        """A request was repeated so often before its answer began."""


class ToolSource(Protocol):
    """The tools that exist."""

    def tools(self) -> tuple[ToolEntry, ...]:
        """All tools of the catalog that models may be offered, as it is now."""
        ...

    def find(self, name: str) -> ToolEntry | ToolError:
        """The tool of that name, or the error that the model reads when there is none."""
        ...

    def allows(self, server: str, name: str) -> bool:
        """Whether a tool, resource or prompt of that name at its server may be used, whether it is there or not."""
        return True

    def has_resources(self) -> bool:
        """Whether there is a resource that may be read."""
        return False

    def instructions(self) -> Mapping[str, str]:
        """What servers say about how to use their tools, by server; of any servers, whatever is visible."""
        return {}

    def visible_to(self, subject: str, roles: Sequence[str], choice: ToolChoice | None = None) -> "ToolSource":
        """The tools that this sender may use, by default all of them; of these, those that its message has chosen."""
        return self


class CallStore(Protocol):
    """Commits rounds and results. Every write raises TurnFencedError when another engine runs the turn."""

    async def add_round(
        self,
        turn: Turn,
        message: AssistantMessage,
        requests: Sequence[ToolCallRequested],
        answered: Mapping[str, ToolOutcome],
        questions: Mapping[str, Question] = NO_QUESTIONS,
        servers: Mapping[str, str] = NO_SERVERS,
        titles: Mapping[str, str] = NO_TITLES,
        *,
        cost: Usage = NO_COST,
        model: str = "",
    ) -> int:
        """Commit the assistant's message with its calls, and an outbox row per request, in one transaction.

        By correlation id, `answered` holds the outcomes of calls that are not requested, `questions` those that wait
        for approval and get no outbox row, `servers` the servers of calls whose tool is known, and `titles` what they
        call those tools. `cost` is the usage of the message, and is added to the turn's; `model` wrote it. Returns the
        id of the message.
        """
        ...

    async def add_result(
        self, turn: Turn, call: ToolCall, outcome: ToolOutcome, whole: WholeResult | None = None
    ) -> bool:
        """Commit the terminal outcome of one call; `whole` is its full text, if `outcome` was shortened.

        Returns False when the call had an outcome already, which is kept.
        """
        ...


MakeRequest = Callable[[Turn], ToolCallRequested]
"""Makes the request of an approved call. Pure. The store passes the turn as it is at the commit, with its owner."""


@dataclass(frozen=True, slots=True)
class ClientResult:
    """The result of a call that the client runs, as it is shown; `whole` is its full text, if that was shortened."""

    asked: Asked
    decision: Decision
    outcome: ToolOutcome
    whole: WholeResult | None


class ApprovalStore(Protocol):
    """Stores the approvals of committed calls, and the results of those that the client runs.

    `close` is for the owner of the turn, and raises TurnFencedError when another engine runs it. Any engine may call
    the others.
    """

    async def states(self, correlation_ids: Sequence[str]) -> Sequence[ApprovalState]:
        """What is committed of these calls. Calls that were deleted are left out."""
        ...

    async def decide(
        self,
        turn_id: str,
        asked: Asked,
        decision: Decision,
        request: MakeRequest | None,
        outcome: ToolOutcome | None,
        answer_key: AnswerKey | None = None,
    ) -> Committed | None:
        """Commit a decision, with the request that runs the call or the outcome that answers it, in one transaction.

        Returns None, and commits nothing, when the question is not open any more: it has its decision, was replaced by
        another question, its call has an outcome, or its turn does not run. Raises IdempotencyKeyReusedError.
        """
        ...

    async def ask_again(self, turn_id: str, asked: Asked, question: Question) -> Committed | None:
        """Replace the question by another one. Returns None when it was not open any more."""
        ...

    async def turn_of(self, correlation_id: str) -> str | None:
        """The turn with this call, whoever owns it; None when there is no such call."""
        ...

    async def answer(
        self, turn_id: str, results: Sequence[ClientResult], answer_key: AnswerKey | None = None
    ) -> Committed | None:
        """Commit the results of calls that the client runs, all of them in one transaction. Returns None, and commits
        nothing, when one of them is not open any more. Raises IdempotencyKeyReusedError."""
        ...

    async def close(
        self, turn: Turn, outcome_of: Callable[[Asked], ToolOutcome]
    ) -> Sequence[tuple[Asked, ToolOutcome]]:
        """Give its outcome to every call of the turn that still waits, so that none can be approved later."""
        ...


class ToolCalls(Protocol):
    """Durable execution of tool calls."""

    def request(
        self, turn: Turn, call: ToolCall, tool: ToolEntry, arguments: dict[str, Any], approved_by: str = ""
    ) -> ToolCallRequested:
        """The request that runs `call`, with its deadline. Pure: nothing is sent.

        `approved_by` names who has approved the call with these arguments; '' for nobody.
        """
        ...

    def run(self, requests: Sequence[ToolCallRequested], *, late: bool = False) -> AsyncGenerator[CallUpdate]:
        """Yield the updates of committed requests until each has its outcome.

        `late` says that they were committed earlier, perhaps by another engine, so that they may have an answer by
        now. The generator must be closed before the same requests are cancelled or run again.
        """
        ...

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        """Cancel committed requests for the user. Returns the outcome that each really has, by correlation id.

        A call that has not begun will not run. One that has is cancelled at the MCP server; when no worker confirms
        that in time, its outcome is unknown.
        """
        ...


@dataclass(frozen=True, slots=True)
class RefusedTool:
    """A tool, by the name that its server gives it, that one model is not offered, because its provider refuses it."""

    tool: str
    model: str
    reason: str


@dataclass(frozen=True, slots=True)
class ServerView:
    """One MCP server as the engine knows it. `workers` is the number of workers that have it in their configuration.

    `breaker` and `retry_at` (Unix milliseconds) are those of the worker that can reach it best. A tool in `refused` is
    not in the catalog if every model's provider refuses it.
    """

    catalog: ServerCatalog
    state: ServerState
    error: str | None
    workers: int
    breaker: BreakerState = BreakerState.CLOSED
    retry_at: int | None = None
    refused: tuple[RefusedTool, ...] = ()

    @property
    def starting(self) -> bool:
        """Whether no worker has connected to it, or failed to, since the worker started.

        Its tools may be known from before; a call of one waits, or fails as not sent.
        """
        return self.state is ServerState.CONNECTING


class ToolDirectory(ToolSource, Protocol):
    """The tools with their servers, for people to look at."""

    @property
    def servers(self) -> tuple[ServerView, ...]:
        """Every configured server, in the order of the names."""
        ...

    @property
    def workers(self) -> int:
        """The number of workers that report, as counted for the server with the most of them."""
        ...

    def visible_to(self, subject: str, roles: Sequence[str], choice: ToolChoice | None = None) -> "ToolDirectory":
        return self


@dataclass(frozen=True, slots=True)
class KeptResult:
    """The full result of a call whose shown result was shortened."""

    correlation_id: str
    tool_name: str
    whole: WholeResult


class ResultStore(Protocol):
    """The full texts of results that were shortened."""

    async def result(self, turn: Turn, name: str) -> KeptResult | None:
        """The result of the call whose correlation id ends with `name`, in the session and of the subject of `turn`."""
        ...

    async def cut_results(self, turn: Turn) -> Sequence[tuple[str, str]]:
        """The newest results in the session of `turn` that were shortened, at most ten.

        Each is the correlation id of the call and the name of its tool.
        """
        ...
