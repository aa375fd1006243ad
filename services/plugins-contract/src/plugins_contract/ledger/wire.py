"""What the ledger scripts are given and give back, as bytes."""

from typing import Any

import msgspec

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallFinished, CallReply, CallState, ToolOutcome

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


LOST_REPLY = encode_reply(
    CallFinished(
        ToolOutcome.failure(
            CallState.UNKNOWN,
            ErrorCode.LOST,
            "it has ended, and Redis lost its reply; whether it took effect is not known",
        )
    )
)
"""Stands for the reply of a finished call whose channel is gone."""


def finished(data: bytes) -> ToolOutcome:
    """The outcome in a terminal reply; where there is none any more, that it was lost.

    Raises:
        msgspec.DecodeError: it is no terminal reply.
    """
    reply = decode_reply(data or LOST_REPLY)
    if not isinstance(reply, CallFinished):
        raise msgspec.ValidationError("the stored reply of a finished call is not terminal")
    return reply.outcome


def unexpected(script: str, answer: Any) -> RuntimeError:
    """What to raise for an answer that this release does not know."""
    return RuntimeError(f"{script} answered {answer!r}: engine and workers run different releases of the contract?")
