"""Events of the Anthropic Messages API. Only the fields that are used are declared."""

from typing import Any

import msgspec

from dialog_engine.llm.decoding import parts_bounded
from dialog_engine.llm.lenient_json import Tokens, Wire, decode
from dialog_engine.model import Usage


class OutputDetails(Wire):
    """What a part of the output was."""

    thinking_tokens: Tokens | None = None


class TokenCount(Wire):
    """Token counts so far; those of a later event replace those of an earlier one."""

    input_tokens: Tokens | None = None
    cache_creation_input_tokens: Tokens | None = None
    cache_read_input_tokens: Tokens | None = None
    output_tokens: Tokens | None = None
    output_tokens_details: OutputDetails | None = None


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

    usage: TokenCount | None = None


class Event(Wire):
    """One event of the stream, or the whole of an answer that is not streamed."""

    type: str | None = None
    index: int | None = None
    message: Message | None = None
    content_block: Block | None = None
    delta: Delta | None = None
    usage: TokenCount | None = None
    content: list[Block] | None = None
    stop_reason: str | None = None
    error: Any = None
    """The error that the provider reports, in any form; falsy without one."""


_event_decoder = msgspec.json.Decoder(Event)


def decode_event(data: bytes) -> Event:
    """Read one payload.

    Raises:
        ValueError: it is not JSON.
    """
    return decode(data, _event_decoder, Event)


def usage_of(tokens: TokenCount) -> Usage:
    """The usage. The provider counts input that is written to or read from its cache apart from the rest."""
    written, cached = tokens.cache_creation_input_tokens or 0, tokens.cache_read_input_tokens or 0
    details = tokens.output_tokens_details or OutputDetails()
    return parts_bounded(
        Usage(
            (tokens.input_tokens or 0) + written + cached,
            tokens.output_tokens or 0,
            cached_tokens=cached,
            cache_write_tokens=written,
            reasoning_tokens=details.thinking_tokens or 0,
        )
    )
