"""The steps of a scripted turn, and the turns behind the suggestions of the empty page."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dialog_engine.model import CallAnswered, CallProgressed, CallQueued, CallRunning, CallUpdate, FinishReason
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ContentBlock, TextBlock, ToolOutcome
from plugins_contract.questions import InputRequired, QuestionKind, ServerQuestion


@dataclass(frozen=True)
class Text:
    """A piece of the model's answer."""

    delta: str


@dataclass(frozen=True)
class Think:
    """A piece of the model's reasoning."""

    delta: str


@dataclass(frozen=True)
class Wait:
    """Nothing more until the test opens this gate; a cancelled turn waits no longer."""

    gate: str


@dataclass(frozen=True)
class Drop:
    """Every event stream is ended: as a broken network would, or with the hint "reconnect"."""

    hint: bool = False


@dataclass(frozen=True)
class Call:
    """One tool call, and the tool that it calls; its methods are its steps, and what comes between is the engine's."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    server: str = "demo"
    tool: str = ""
    title: str | None = None
    approval: ApprovalPolicy = ApprovalPolicy.NEVER

    @property
    def entry(self) -> ToolEntry:
        """The tool as it is in the catalog."""
        tool = self.tool or self.name.partition("__")[2]
        return ToolEntry(
            name=self.name,
            server=self.server,
            tool=tool,
            title=self.title,
            input_schema={"type": "object"},
            approval=self.approval,
        )

    def queued(self) -> "Update":
        return Update(self, lambda call: CallQueued(call, 0))

    def running(self) -> "Update":
        return Update(self, lambda call: CallRunning(call, 1))

    def progress(self, progress: float, total: float, words: str) -> "Update":
        return Update(self, lambda call: CallProgressed(call, progress, total, words))

    def begun(self) -> "list[Step]":
        return [self.queued(), self.running()]

    def succeeded(self, text: str, *blocks: ContentBlock, took: int = 12, truncated: bool = False) -> "Update":
        content = (TextBlock(text), *blocks) if text else blocks
        return self.answered(
            ToolOutcome(CallState.SUCCEEDED, content, duration_ms=took, attempts=1, truncated=truncated)
        )

    def ended(self, state: CallState, code: ErrorCode, words: str) -> "Update":
        return self.answered(ToolOutcome.failure(state, code, words, duration_ms=40, attempts=1))

    def asks(self, message: str, form: Mapping[str, Any] | None = None, url: str | None = None) -> "Update":
        """Its server ends a round with a question."""
        kind = QuestionKind.FORM if url is None else QuestionKind.URL
        question = ServerQuestion("q", kind, message, None if form is None else dict(form), url)
        return self.answered(ToolOutcome(CallState.INPUT_REQUIRED, asked=InputRequired((question,), "state")))

    def answered(self, outcome: ToolOutcome) -> "Update":
        return Update(self, lambda call: CallAnswered(call, outcome))


@dataclass(frozen=True)
class Update:
    """An update of a call; `update` makes it for the correlation id."""

    call: Call
    update: Callable[[str], CallUpdate]


@dataclass(frozen=True)
class Message:
    """The end of a reply of the model: what it has not said yet of `content`, and its calls."""

    content: str
    calls: tuple[Call, ...] = ()


@dataclass(frozen=True)
class Done:
    """The end of the last reply."""

    reason: FinishReason = FinishReason.STOP


@dataclass(frozen=True)
class Fail:
    """The model fails."""

    words: str


Step = Text | Think | Wait | Drop | Update | Message | Done | Fail
Script = Sequence[Step]


def text(*deltas: str) -> list[Step]:
    return [Text(delta) for delta in deltas]


def message(content: str, *calls: Call) -> Message:
    return Message(content, calls)


def answer(*deltas: str) -> list[Step]:
    """Text in pieces, and the message they make."""
    return [*text(*deltas), Message("".join(deltas))]


def _time_in_two_cities() -> Script:
    tokyo = Call("time__get_current_time", {"timezone": "Asia/Tokyo"}, "time")
    paris = Call("time__convert_time", {"timezone": "Europe/Paris"}, "time")
    return [
        *text("I will look up both cities."),
        message("I will look up both cities.", tokyo, paris),
        *tokyo.begun(),
        *paris.begun(),
        tokyo.succeeded('{"timezone": "Asia/Tokyo", "datetime": "2026-11-21T19:00:00+09:00"}', took=38),
        paris.succeeded('{"timezone": "Europe/Paris", "datetime": "2026-11-21T11:00:00+01:00"}', took=41),
        *answer(
            "Here is the time ",
            "in both cities:\n\n| City | Local time | Offset |\n|---|--:|--:|\n",
            "| Tokyo | 19:00 | +09:00 |\n| Paris | 11:00 | +01:00 |\n\n",
            "Tokyo is **eight hours ahead** of Paris.",
        ),
    ]


JOB = Call("demo__slow_job", {"seconds": 5})
FAILING = Call("demo__fail", {"reason": "because it was asked to"})
WORDS = "The tool reported: because it was asked to"

SUGGESTED: Mapping[str, Script] = {
    "What time is it in Tokyo and in Paris?": _time_in_two_cities(),
    "What is 17 * 23 + 4?": answer("17 \\* 23 + 4 = ", "**395**"),
    "Run a slow job for 5 seconds": [
        *JOB.begun(),
        JOB.progress(3, 5, "Step 3 of 5"),
        Wait("job"),
        JOB.succeeded("The job ran for 5 seconds.", took=5012),
        *answer("The slow job is finished."),
    ],
    "Call the failing tool": [
        *FAILING.begun(),
        FAILING.ended(CallState.FAILED, ErrorCode.TOOL_EXECUTION_FAILED, WORDS),
        *answer("The tool failed, as it was asked to. Nothing else was changed."),
    ],
}
