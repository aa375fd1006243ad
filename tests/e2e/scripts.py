"""What a scripted turn says: its steps, and the turns behind the suggestions of the empty page."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

Json = Mapping[str, Any]
ToolStatus = Literal[
    "pending", "queued", "running", "progress", "succeeded", "failed", "timeout", "cancelled", "unknown", "refused"
]


@dataclass(frozen=True)
class Say:
    """One event of the turn."""

    event: str
    data: Json


@dataclass(frozen=True)
class Wait:
    """Nothing more until the test opens this gate; a cancelled turn waits no longer."""

    gate: str


@dataclass(frozen=True)
class Drop:
    """Every connection to this turn is closed, with a comment "reconnect" or without."""

    reconnect: bool = False


Step = Say | Wait | Drop
Script = Sequence[Step]


@dataclass(frozen=True)
class Call:
    """One tool call of a script; its methods are its steps."""

    name: str
    correlation_id: str
    arguments: Json = field(default_factory=dict[str, Any])
    server: str = "demo"

    def step(self, status: ToolStatus, **more: Any) -> Say:
        facts = {
            "type": "tool",
            "status": status,
            "toolName": self.name,
            "server": self.server,
            "toolCallId": f"call_{self.correlation_id}",
            "correlationId": self.correlation_id,
            "round": 1,
        }
        return Say("control", facts | more)

    def pending(self) -> Say:
        return self.step("pending", arguments=self.arguments)

    def succeeded(
        self, text: str, media: Sequence[Json] = (), *, truncated: bool = False, took: int = 12, **more: Any
    ) -> Say:
        result = {"text": text, "truncated": truncated, "media": list(media), **more}
        return self.step("succeeded", durationMs=took, result=result)

    def ended(self, status: ToolStatus, code: str, message: str, *, took: int = 40) -> Say:
        return self.step(status, durationMs=took, error={"code": code, "message": message})

    def announced(self) -> list[Step]:
        return [self.pending(), self.step("queued"), self.step("running", attempt=1)]


def text(*deltas: str) -> list[Step]:
    return [Say("text", {"delta": delta}) for delta in deltas]


def message(content: str, *calls: Call) -> Say:
    """A finished message. What became of its calls is looked up by the engine when the message is read back."""
    made = [{"toolCallId": f"call_{call.correlation_id}", "correlationId": call.correlation_id} for call in calls]
    return Say("message", {"role": "assistant", "content": content} | ({"toolCalls": made} if made else {}))


def reset(*says: Say) -> Say:
    """All events of the turn so far, once more."""
    events = [{"event": say.event, "data": say.data} for say in says]
    return Say("reset", {"reason": "restart", "events": events})


def answer(*deltas: str) -> list[Step]:
    """Text in pieces, and the message they make."""
    return [*text(*deltas), message("".join(deltas))]


def done(reason: str = "stop", **usage: bool) -> Say:
    return Say("done", {"reason": reason, "usage": {"inputTokens": 214, "outputTokens": 61} | usage, "ttftMs": 180})


def _time_in_two_cities() -> Script:
    tokyo = Call("time__get_current_time", "tokyo", {"timezone": "Asia/Tokyo"}, "time")
    paris = Call("time__get_current_time", "paris", {"timezone": "Europe/Paris"}, "time")
    return [
        *text("I will look up both cities."),
        message("I will look up both cities.", tokyo, paris),
        *tokyo.announced(),
        *paris.announced(),
        tokyo.succeeded(
            '{"timezone": "Asia/Tokyo", "datetime": "2026-11-21T19:00:00+09:00", "is_dst": false}', took=38
        ),
        paris.succeeded(
            '{"timezone": "Europe/Paris", "datetime": "2026-11-21T11:00:00+01:00", "is_dst": false}', took=41
        ),
        Say("control", {"type": "tools", "status": "complete", "round": 1}),
        *answer(
            "Here is the time ",
            "in both cities:\n\n| City | Local time | Offset |\n|---|--:|--:|\n",
            "| Tokyo | 19:00 | +09:00 |\n| Paris | 11:00 | +01:00 |\n\n",
            "Tokyo is **eight hours ahead** of Paris.",
        ),
        done(),
    ]


def _arithmetic() -> Script:
    return [*answer("17 \\* 23 + 4 = ", "**395**"), done()]


def _slow_job() -> Script:
    job = Call("demo__slow_job", "slow", {"seconds": 5})
    return [
        message("", job),
        *job.announced(),
        job.step("progress", progress=3, total=5, message="Step 3 of 5"),
        Wait("job"),
        job.succeeded("The job ran for 5 seconds.", took=5012),
        *answer("The slow job is finished."),
        done(),
    ]


def _failing_tool() -> Script:
    call = Call("demo__fail", "fail", {"reason": "because it was asked to"})
    return [
        message("", call),
        *call.announced(),
        call.ended("failed", "TOOL_EXECUTION_FAILED", "The tool reported: because it was asked to"),
        *answer("The tool failed, as it was asked to. Nothing else was changed."),
        done(),
    ]


SUGGESTED: Mapping[str, Script] = {
    "What time is it in Tokyo and in Paris?": _time_in_two_cities(),
    "What is 17 * 23 + 4?": _arithmetic(),
    "Run a slow job for 5 seconds": _slow_job(),
    "Call the failing tool": _failing_tool(),
}
