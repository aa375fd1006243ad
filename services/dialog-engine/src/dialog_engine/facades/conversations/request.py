"""What clients say of a conversation, and the items that they add to it. Pure."""

from collections.abc import Mapping, Sequence

import msgspec

from dialog_engine.chat.conversations import Addition
from dialog_engine.facades.images import RefusedError
from dialog_engine.facades.openai.request import decoded
from dialog_engine.facades.responses.ids import item_id
from dialog_engine.facades.responses.input import Item, content_of
from dialog_engine.facades.responses.request import check_metadata
from dialog_engine.model import ClientMessage

MAX_ITEMS = 20
"""How many items one request may add."""


class _Created(msgspec.Struct):
    items: list[Item] | None = None
    metadata: dict[str, str] | None = None


class _Described(msgspec.Struct):
    metadata: dict[str, str] | None


class _Added(msgspec.Struct):
    items: list[Item]


def read_created(body: bytes, addition_id: str) -> tuple[Mapping[str, str], Addition]:
    """What a new conversation has. An empty body is one of a conversation that has nothing. Raises RefusedError."""
    wanted = decoded(body, _Created) if body.strip() else _Created()
    return _checked(wanted.metadata), _addition(wanted.items or (), addition_id)


def read_described(body: bytes) -> Mapping[str, str]:
    """The metadata that replace those of a conversation. Raises RefusedError."""
    return _checked(decoded(body, _Described).metadata)


def read_added(body: bytes, addition_id: str) -> Addition:
    """The items that are added. Raises RefusedError."""
    items = decoded(body, _Added).items
    if not items:
        raise RefusedError("items", "must not be empty")
    return _addition(items, addition_id)


def _checked(metadata: dict[str, str] | None) -> Mapping[str, str]:
    check_metadata(metadata or {})
    return metadata or {}


def _addition(items: Sequence[Item], addition_id: str) -> Addition:
    if len(items) > MAX_ITEMS:
        raise RefusedError("items", f"has {len(items)} items; {MAX_ITEMS} are allowed at a time")
    return Addition(addition_id, [_message(each, number, addition_id) for number, each in enumerate(items)])


def _message(item: Item, number: int, addition_id: str) -> ClientMessage:
    where = f"items[{number}]"
    if item.type != "message":
        raise RefusedError(f"{where}.type", "must be message: calls and their results come with responses")
    text, media = content_of(item.content, f"{where}.content")
    if not text.strip() and not media:
        raise RefusedError(f"{where}.content", "must not be empty")
    if media and item.role != "user":
        raise RefusedError(f"{where}.content", "only messages of the user have images")
    match item.role:
        case "user" | "assistant" | "system" | "developer":
            return ClientMessage(item.role, text, media, id=item_id("msg", addition_id, f"a{number}"))
        case _:
            raise RefusedError(f"{where}.role", "must be user, assistant, system or developer")
