"""Why a tool call is not put on the stream."""

from dataclasses import dataclass

from plugins_contract.ledger.replies import Conflict, Overloaded


@dataclass(frozen=True, slots=True)
class Rejected:
    """The request cannot be handed to the workers: it cannot be read, or Redis refuses the command. It was not run."""

    reason: str


Refusal = Overloaded | Conflict | Rejected
"""It is not on the stream, and is not going there once its call has been told so."""


def reason_of(refusal: Refusal) -> str:
    """The reason, for people who look into the outbox."""
    match refusal:
        case Rejected(reason):
            return reason
        case Overloaded(backlog):
            return f"{backlog} calls wait already"
        case Conflict():
            return "its correlation id names another request"
