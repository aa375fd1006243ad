"""What workers and the relay say of a call, in the words of the pipeline. Pure."""

from dialog_engine.model import CallAnswered, CallProgressed, CallQueued, CallRunning, CallUpdate
from dialog_engine.streams.refusals import Rejected
from plugins_contract.errors import ErrorCode
from plugins_contract.ledger.replies import AlreadyFinished, AlreadyQueued, Conflict, Enqueued, Overloaded, Queued
from plugins_contract.outcomes import CallFinished, CallProgress, CallReply, CallStarted, CallState, ToolOutcome


def of_reply(correlation_id: str, reply: CallReply) -> CallUpdate:
    """A message of the response channel."""
    match reply:
        case CallStarted(attempt):
            return CallRunning(correlation_id, attempt)
        case CallProgress(progress, total, message):
            return CallProgressed(correlation_id, progress, total, message)
        case CallFinished(outcome):
            return CallAnswered(correlation_id, outcome)


def of_enqueued(correlation_id: str, answer: Enqueued | Rejected) -> CallUpdate:
    """What ENQUEUE answered, or why it could not even be asked."""
    match answer:
        case Queued(backlog=backlog):
            return CallQueued(correlation_id, backlog)
        case AlreadyQueued():
            return CallQueued(correlation_id)
        case AlreadyFinished(outcome):
            return CallAnswered(correlation_id, outcome)
        case Overloaded(backlog):
            message = f"{backlog} tool calls are waiting already; try again later"
            return CallAnswered(correlation_id, _failed(ErrorCode.OVERLOADED, message))
        case Rejected(reason):
            message = f"the request cannot be handed to the workers, so it was not run: {reason}"
            return CallAnswered(correlation_id, _failed(ErrorCode.UNKNOWN_ERROR, message))
        case Conflict():
            return CallAnswered(
                correlation_id, _failed(ErrorCode.UNKNOWN_ERROR, "another request has this correlation id")
            )


def _failed(code: ErrorCode, message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, code, message)
