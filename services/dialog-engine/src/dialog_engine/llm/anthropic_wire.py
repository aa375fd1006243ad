"""Events of the Anthropic Messages API. Only what is used is declared."""

from typing import Any

import msgspec

from dialog_engine.llm.lenient import Wire, decode


class Tokens(Wire):
    """Tokens so far; the counts of a later event replace those of an earlier one."""

    input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    output_tokens: int | None = None


class Block(Wire):
    """The start of a content block, or a whole one."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    signature: str | None = None
    data: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None


class Delta(Wire):
    """A piece of a content block, or of the message itself."""

    text: str | None = None
    partial_json: str | None = None
    thinking: str | None = None
    signature: str | None = None
    stop_reason: str | None = None


class Message(Wire):
    """The message as it stands at its start."""

    usage: Tokens | None = None


class Event(Wire):
    """One event of the stream, or the whole of an answer that is not streamed."""

    type: str | None = None
    index: int | None = None
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: Tokens | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    error: Any = None
    """Whatever the provider says went wrong; falsy when nothing did."""


_decoder = msgspec.json.Decoder(Event)


def decode_event(data: bytes) -> Event:
    """Read one payload.

    Raises:
        ValueError: it is not JSON.
    """
    return decode(data, _decoder, Event)
