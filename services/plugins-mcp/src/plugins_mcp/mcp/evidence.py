"""What the end of one call says about the health of its server. Pure."""

from dataclasses import dataclass

from plugins_mcp.mcp.calls import Ambiguous, Answered, CallResult, NotSent, Rejected, RetryLater, TimedOut

FAIR_SECONDS = 1.0
"""A call that was given less time than this, because it had waited elsewhere, says nothing when it runs out of it."""


@dataclass(frozen=True, slots=True)
class Healthy:
    """It answered, be it with an error."""


@dataclass(frozen=True, slots=True)
class Failing:
    """It did not. `wish`: for how many seconds it wants to be left alone."""

    reason: str
    wish: float | None = None


Evidence = Healthy | Failing | None


def evidence(result: CallResult | None, *, seconds: float, lost: bool) -> Evidence:
    """What `result` says; None for nothing, as when the call was cut off here (also a result of None).

    `seconds` is the time that the server had. `lost`: the connection was lost, which its owner notices by itself, once
    for all the calls that went with it.
    """
    match result:
        case Answered() | Rejected():
            return Healthy()
        case RetryLater(reason, after_s):
            return Failing(reason, after_s)
        case Ambiguous(reason) | NotSent(reason):
            return None if lost else Failing(reason)
        case TimedOut(sent):
            return Failing("no answer in time") if sent and seconds >= FAIR_SECONDS and not lost else None
        case None:
            return None
