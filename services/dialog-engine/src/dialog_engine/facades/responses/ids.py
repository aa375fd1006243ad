"""The ids of the Responses API. Each begins with its kind and the id of its turn, so that it says by itself where it
belongs: clients send ids back without the response that had them. Pure."""

from dataclasses import dataclass
from uuid import UUID

RESPONSE, APPROVAL, CONVERSATION = "resp", "mcpr", "conv"
FUNCTION_CALL, FUNCTION_OUTPUT = "fc", "fco"
_ITEMS = ("msg", "rs", "mcp", "mcpl", APPROVAL, FUNCTION_CALL, FUNCTION_OUTPUT)
_HEX = 32


@dataclass(frozen=True, slots=True)
class Named:
    """What an id says: a turn, or a session, and what is behind it in the id."""

    owner: str
    rest: str = ""


def response_id(turn_id: str, answered: str = "") -> str:
    """The id of the response that begins with a turn, or with the answer to one of its calls: the user's to the request
    for its approval, or the client's with its result."""
    return item_id(RESPONSE, turn_id, answered)


def item_id(kind: str, turn_id: str, *rest: str) -> str:
    """An id of a kind, about a turn or a session."""
    return "_".join([kind, turn_id.replace("-", ""), *filter(None, rest)])


def approval_id(turn_id: str, correlation_id: str, question_hash: str) -> str:
    """The id of a request for approval: for one call, and for what was asked about it."""
    return item_id(APPROVAL, turn_id, f"{correlation_id}.{question_hash}")


def asked_for(named: Named) -> tuple[str, str]:
    """The call and the hash of the id of a request for approval; '' for what it does not say."""
    correlation_id, _, question_hash = named.rest.partition(".")
    return correlation_id, question_hash


def named(text: str, *kinds: str) -> Named | None:
    """What an id of one of these kinds says; None for any other text, and for one with U+0000, which no id has."""
    kind, _, rest = text.partition("_")
    owner, _, rest = rest.partition("_")
    if "\0" in text or kind not in kinds or len(owner) != _HEX or not set(owner) <= set("0123456789abcdef"):
        return None
    return Named(str(UUID(owner)), rest)


def of_item(text: str) -> Named | None:
    """What the id of an item says."""
    return named(text, *_ITEMS)
