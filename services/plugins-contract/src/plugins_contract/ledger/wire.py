"""What the ledger scripts are given and give back, as bytes."""

from typing import Any

import msgspec

from plugins_contract.outcomes import CallFinished, CallReply, ToolOutcome

_reply_decoder = msgspec.json.Decoder[CallReply](CallReply)


def encode_reply(reply: CallReply) -> bytes:
    """A message of the response channel as JSON."""
    return msgspec.json.encode(reply)


def decode_reply(data: bytes) -> CallReply:
    """A message of the response channel.

    Raises:
        msgspec.DecodeError: it is not one.
    """
    return _reply_decoder.decode(data)


def decode_outcome(data: bytes) -> ToolOutcome:
    """The outcome in a terminal reply.

    Raises:
        msgspec.DecodeError: it is no terminal reply.
    """
    reply = decode_reply(data)
    if not isinstance(reply, CallFinished):
        raise msgspec.ValidationError("the stored reply of a finished call is not terminal")
    return reply.outcome


def unexpected(script: str, answer: Any) -> RuntimeError:
    """What to raise for an answer that this release does not know."""
    return RuntimeError(f"{script} answered {answer!r}: engine and workers run different releases of the contract?")
