"""The Lua files of this package, loaded once and run by hash; what they are given and give back, as bytes."""

import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Protocol

import msgspec
from redis.exceptions import NoScriptError

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallFinished, CallReply, CallState, ToolOutcome

Arg = str | bytes | int
Command = tuple[Sequence[str], Sequence[Arg]]
"""Keys and arguments of a script."""


@dataclass(frozen=True, slots=True)
class Script:
    """One script: its text and the SHA-1 by which the server knows it."""

    name: str
    text: str
    sha: str


_SHARED = {"audit": "loss", "lose": "loss", "requeue": "letters", "discard": "letters"}
"""What some scripts share beside the part that is common to all."""


@cache
def load(name: str) -> Script:
    """The script `<name>.lua`, with the shared parts in front."""
    folder = files(__package__ or __name__)
    parts = ["common", *([_SHARED[name]] if name in _SHARED else []), name]
    return script(name, "".join((folder / f"{part}.lua").read_text() for part in parts))


def script(name: str, text: str) -> Script:
    """A script of this text."""
    return Script(name, text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class AsyncCommands(Protocol):
    """The part of an asyncio Redis client that scripts need."""

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command."""
        ...


class SyncPipeline(Protocol):
    """Commands that go to Redis together."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Add one command."""
        ...

    def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send them: the answers, in the order of the commands."""
        ...


class SyncCommands(Protocol):
    """The part of a blocking Redis client that scripts need."""

    def execute_command(self, *args: Any, **options: Any) -> Any:
        """Send one command."""
        ...

    def pipeline(self, transaction: bool = True) -> SyncPipeline:
        """Begin to collect commands."""
        ...


class ServerMark:
    """A script of one owner, by which it knows a server again: one that was started since does not have it."""

    def __init__(self) -> None:
        self._script = script("mark", f"return '{uuid.uuid4().hex}'")

    def leave(self, redis: SyncCommands) -> bool:
        """Leave the mark. False when it was missing: the server is another one, or may have forgotten everything."""
        try:
            redis.execute_command("EVALSHA", self._script.sha, 0)
        except NoScriptError:
            redis.execute_command("EVAL", self._script.text, 0)
            return False
        return True


async def run(redis: AsyncCommands, name: str, keys: Sequence[str], args: Sequence[Arg]) -> list[Any]:
    """Run a script; a server that does not know it yet is sent the text."""
    script = load(name)
    try:
        return await redis.execute_command("EVALSHA", script.sha, len(keys), *keys, *args)
    except NoScriptError:
        return await redis.execute_command("EVAL", script.text, len(keys), *keys, *args)


def run_each_sync(redis: SyncCommands, name: str, commands: Sequence[Command]) -> list[Any]:
    """The same from a thread, once for each of `commands` in one round trip: the answers, or errors in their place.

    Raises:
        RedisError, OSError: no answer came.
    """
    script = load(name)
    answers = _piped(redis, "EVALSHA", script.sha, commands)
    unknown = [n for n, answer in enumerate(answers) if isinstance(answer, NoScriptError)]
    if unknown:
        again = _piped(redis, "EVAL", script.text, [commands[n] for n in unknown])
        for n, answer in zip(unknown, again, strict=True):
            answers[n] = answer
    return answers


def _piped(redis: SyncCommands, how: str, script: str, commands: Sequence[Command]) -> list[Any]:
    pipeline = redis.pipeline(transaction=False)
    for keys, args in commands:
        pipeline.execute_command(how, script, len(keys), *keys, *args)
    return pipeline.execute(raise_on_error=False)


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
