"""What the wiring gives to the HTTP layer: the services, and what a request may choose."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Literal

from dialog_engine.calls.large_results import LargeResults
from dialog_engine.calls.reads import Reads
from dialog_engine.chat.approvals import Approvals
from dialog_engine.chat.archive import Archive, AskedResponses, Sessions
from dialog_engine.chat.audit import AuditLog
from dialog_engine.chat.client_calls import ClientCalls
from dialog_engine.chat.conversations import Conversations
from dialog_engine.chat.events import Readers, TurnFrames
from dialog_engine.chat.parked import ParkedTurns
from dialog_engine.chat.questions import Questions
from dialog_engine.chat.requests import SentRequests
from dialog_engine.chat.resent import ResentStore
from dialog_engine.chat.session_changes import SessionFeed
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.consumption.limits import Consumption
from dialog_engine.consumption.subjects import SubjectUse
from dialog_engine.consumption.usage import Prices, UsageReport
from dialog_engine.http.bodies import LeavingRule
from dialog_engine.http.problems import ProblemError
from dialog_engine.http.shares import Shares
from dialog_engine.http.streams import Streams
from dialog_engine.model import Choice
from dialog_engine.personal_data.service import PersonalData
from dialog_engine.tool_calls.exposure.exposure import Exposure
from dialog_engine.tool_calls.ports import ToolDirectory
from dialog_engine.tool_calls.questions.values import FoundRound
from dialog_engine.tool_calls.values import PendingApproval

LARGE_AT_ONCE = 4
"""How many answers of one subject that may be large are in memory at once, until their clients have read them.

Fewer than the connections to the database, so that one subject does not keep all of them busy.
"""
PLAIN = ":plain"
"""Behind the name of a model: the same model without tools, for requests that a chat page makes for itself."""
MAX_LARGE = 500
"""How many requests for such answers of one subject may be waiting or answered."""


@dataclass(frozen=True, slots=True)
class Choices:
    """The models and tool modes that the configuration allows.

    `models` are names, `provider:model`, and `default` is among them. `tool_modes` is empty when none may be chosen.
    `default_label` replaces the name of the default model where it is shown.
    """

    default: str
    models: tuple[str, ...]
    tool_modes: tuple[str, ...] = ()
    default_label: str | None = None

    def made(self, model: str | None, tool_mode: str | None) -> Choice:
        """The choice of a request; None stands for a field that was left out.

        Raises:
            ProblemError: a value is not allowed; the detail lists those that are.
        """
        if model is not None and model not in self.models:
            raise _refused("model", f"must be one of {', '.join(self.models)}")
        if tool_mode is not None and tool_mode not in self.tool_modes:
            allowed = (
                f"must be one of {', '.join(self.tool_modes)}" if self.tool_modes else "cannot be chosen: leave it out"
            )
            raise _refused("toolMode", allowed)
        return Choice(model or "", tool_mode or "")

    def named(self, name: str) -> tuple[str, bool] | None:
        """The model with this name or label, and whether PLAIN is behind it; None for no model."""
        labels = {label: each for each, label in self.labels().items()}
        for plain in (False, True):
            found = name.removesuffix(PLAIN) if plain else name
            if found in self.models or found in labels:
                return labels.get(found, found), plain
        return None

    def labels(self) -> dict[str, str]:
        """The label of each model by its name: without the provider, unless two models would have the same label."""
        short = {name: name.partition(":")[2] for name in self.models}
        labels = {name: label if [*short.values()].count(label) == 1 else name for name, label in short.items()}
        return labels | ({self.default: self.default_label} if self.default_label else {})


def _refused(field: str, detail: str) -> ProblemError:
    return ProblemError(HTTPStatus.UNPROCESSABLE_ENTITY, "CHOICE_NOT_ALLOWED", f"{field} {detail}", field=field)


@dataclass(frozen=True, slots=True)
class About:
    """What `GET /v1/about` says about the engine."""

    version: str
    model: str
    model_label: str
    scripted: bool
    mcp_enabled: bool


@dataclass(frozen=True, slots=True)
class CompletionOptions:
    """What the settings say about Chat Completions. `steps` is how much is said of tool calls; `tasks` begins the
    requests that a chat page makes for itself, '' for none. `page` is where people decide about calls, '' for nowhere.
    """

    steps: str = "reasoning"
    tasks: str = ""
    page: str = ""


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether requests can be served, as they can when ready or degraded, and the state of each part."""

    status: Literal["starting", "ready", "degraded", "unready"]
    parts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that the routes use."""

    about: About
    choices: Choices
    leaving: LeavingRule
    readers: Readers
    turns: RunningTurns
    parked: ParkedTurns
    sessions: Sessions
    conversations: Conversations
    pending_approvals: Callable[[str, int], Awaitable[Sequence[PendingApproval]]]
    pending_client_calls: Callable[[str, int], Awaitable[Sequence[PendingApproval]]]
    feed: SessionFeed
    archive: Archive
    requests: SentRequests
    personal_data: PersonalData
    audit: AuditLog
    consumption: Consumption
    approvals: Approvals
    client_calls: ClientCalls
    client_tools: Callable[[], bool]
    """Whether requests may bring tools now: no engine of an earlier release lives."""
    pending_questions: Callable[[str, int], Awaitable[Sequence[FoundRound]]]
    questions: Questions
    frames: TurnFrames
    streams: Streams
    tools: ToolDirectory
    exposure: Exposure
    readiness: Callable[[], Awaitable[Readiness]]
    metrics: Callable[[str], Awaitable[tuple[bytes, str]]]
    max_message_chars: int
    subjects: SubjectUse
    usage: UsageReport
    large_results: LargeResults
    prices: Callable[[], Prices]
    reads: Reads
    resent: ResentStore
    responses: AskedResponses
    completions: CompletionOptions
    large_bodies: Shares = field(default_factory=lambda: Shares(LARGE_AT_ONCE, MAX_LARGE, "requests with large bodies"))
    large_answers: Shares = field(default_factory=lambda: Shares(LARGE_AT_ONCE, MAX_LARGE, "requests for data"))
    on_refused: Callable[[str, str], None] = lambda code, subject: None
    """Called for each request that is answered with a problem document, with its code and its sender."""
