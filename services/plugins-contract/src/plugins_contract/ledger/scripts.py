"""The Lua files of this package, run by redis-py's registered scripts; their arguments and answers as bytes."""

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from functools import cache
from importlib.resources import files
from operator import attrgetter
from types import SimpleNamespace
from typing import Annotated, Any, NamedTuple, ParamSpec, get_type_hints

import msgspec
from redis import Redis as SyncRedis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from plugins_contract.encryption import SEALED, Cipher, DecryptionError, reply_owner
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import GROUP, Keys
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallFinished, CallReply, CallState, ToolOutcome

P = ParamSpec("P")
Key = Annotated[str, "a key"]
Text = str | bytes | int
"""A script reads it as a string, also if it is a number here."""
_TYPES = {int: "tonumber(ARGV[{}])", Key: "KEYS[{}]", Sequence[Key]: "{{unpack(KEYS, {})}}"}


class Command(NamedTuple):
    """A script with its keys and arguments."""

    script: str
    keys: Sequence[str]
    args: Sequence[Text]


@dataclass(frozen=True, slots=True)
class Call:
    """A call, and where it is answered. `mailbox` is `channel` for a caller that has none."""

    call: Key
    channel: Key
    mailbox: Key
    id: str
    tool_call_id: str

    @classmethod
    def of(cls, request: ToolCallRequested, keys: Keys) -> "Call":
        """The call of a request."""
        call, channel = request.correlation_id, request.response_channel
        return cls(keys.call(call), channel, request.mailbox or channel, call, request.tool_call_id)


@dataclass(frozen=True, slots=True)
class Held:
    """An entry of a stream of requests in the hands of a consumer."""

    requests: Key
    entry: str
    consumer: str


@dataclass(frozen=True, slots=True)
class Delivery:
    """One entry of the request stream in the hands of one consumer.

    `token` is unique to this delivery. `adopted`: the request comes from a producer that does not use the ledger.
    `stream` is the key of the stream that has the entry; '' for `events.plugins`.
    """

    request: ToolCallRequested
    entry: str
    consumer: str
    token: str
    adopted: bool = False
    stream: str = ""

    @property
    def enqueued_at(self) -> int:
        """When the request was put on the stream, in Unix milliseconds: the first part of its entry's id."""
        return int(self.entry.partition("-")[0])

    def held(self, keys: Keys) -> Held:
        """The same for a script."""
        return Held(self.stream or keys.requests, self.entry, self.consumer)


_HEADERS: dict[str, str] = {}
"""Of each script: the lines that give its keys and arguments the names by which it reads them."""


def script(stub: Callable[P, None]) -> Callable[P, Command]:
    """Make a function that names the keys and arguments of the script of its name into one that makes its command.

    It has keyword arguments only. Those annotated with `Key` are keys, and the last of them may be `Sequence[Key]`;
    a dataclass stands for its fields. In the script an int is a number, and any other argument a string. An underscore
    at the end is not part of a name.
    """
    name, kinds = stub.__name__.rstrip("_"), dict[str, Any]()
    for each, kind in get_type_hints(stub, include_extras=True).items():
        fields = get_type_hints(kind, include_extras=True) if is_dataclass(kind) else {}
        kinds |= {f"{each}.{field}": of_field for field, of_field in fields.items()} or {each: kind}
    del kinds["return"]
    keys = [path for path, kind in kinds.items() if kind in (Key, Sequence[Key])]
    args = [path for path in kinds if path not in keys]
    many = kinds[keys[-1]] != Key
    _HEADERS[name] = f"local group = '{GROUP}'\n" + "".join(
        f"local {path.rpartition('.')[2].rstrip('_')} = {_TYPES.get(kinds[path], 'ARGV[{}]').format(at)}\n"
        for paths in (keys, args)
        for at, path in enumerate(paths, 1)
    )
    read_keys, read_args = [[*map(attrgetter, paths)] for paths in (keys, args)]

    def command(*_: P.args, **values: P.kwargs) -> Command:
        given = SimpleNamespace(**values)
        named = [read(given) for read in read_keys]
        if many:
            named[-1:] = named[-1]
        return Command(name, named, [read(given) for read in read_args])

    return command


_SHARED = {
    **dict.fromkeys(("audit", "lose"), ("loss",)),
    **dict.fromkeys(("requeue", "discard"), ("letters",)),
    **dict.fromkeys(("hold", "keep", "close"), ("sessions",)),
    **dict.fromkeys(("report", "start", "cancel", "retire", "tidy"), ("workers",)),
    "enqueue": ("sessions", "workers"),
}
"""The parts that some scripts share, beside the one that is common to all."""


@cache
def load(name: str) -> str:
    """The text of the script `<name>.lua`, after the shared parts and the names of its keys and arguments."""
    folder = files(__package__ or __name__)
    parts = ["common", *_SHARED.get(name, ()), name]
    *shared, body = ((folder / f"{part}.lua").read_text() for part in parts)
    return "".join([*shared, _HEADERS.get(name, ""), body])


class Scripts:
    """The scripts of the ledger, as one client runs them."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # redis-py types register_script only partly
        self._registered: dict[str, Any] = {}

    async def run(self, command: Command) -> list[Any]:
        """Run a script; redis-py loads it first on a server that does not know it. Raises what redis raises."""
        return await self._script(command.script)(command.keys, command.args)

    async def run_each(self, commands: Sequence[Command]) -> list[Any]:
        """Run one script with each of `commands`, sent in one write. Errors stand in place of answers."""
        if not commands:
            return []
        script = self._script(commands[0].script)
        sent = [("EVALSHA", script.sha, len(keys), *keys, *args) for _, keys, args in commands]
        answers: list[Any] = await self._redis.execute_each(sent)
        if unknown := [at for at, answer in enumerate(answers) if isinstance(answer, NoScriptError)]:
            _, *again = await self._redis.execute_each([("SCRIPT LOAD", script.script), *(sent[at] for at in unknown)])
            for at, answer in zip(unknown, again, strict=True):
                answers[at] = answer
        return answers

    def _script(self, name: str) -> Any:
        if (script := self._registered.get(name)) is None:
            script = self._registered[name] = self._redis.register_script(load(name))
        return script


def run_each(redis: SyncRedis, commands: Sequence[Command]) -> list[Any]:
    """Run one script from a thread with each of `commands`, in one pipeline. Errors stand in place of answers.

    Raises:
        RedisError: no answer came.
    """
    if not commands:
        return []
    script: Any = redis.register_script(load(commands[0].script))
    pipeline: Any = redis.pipeline(transaction=False)
    for _, keys, args in commands:
        script(keys, args, client=pipeline)
    return pipeline.execute(raise_on_error=False)


class ServerMark:
    """A script of one owner, by which it recognises a server: one that was started since does not have it."""

    def __init__(self) -> None:
        self._text = f"return '{uuid.uuid4().hex}'"

    def found(self, redis: SyncRedis) -> bool:
        """False when the server is another one, or may have lost its data."""
        script: Any = redis.register_script(self._text)
        client: Any = redis
        return bool(client.script_exists(script.sha)[0])

    def leave(self, redis: SyncRedis) -> None:
        """Leave the mark on this server."""
        client: Any = redis
        client.script_load(self._text)


_reply_decoder = msgspec.json.Decoder[CallReply](CallReply)


def encode_reply(reply: CallReply) -> bytes:
    """A message of the response channel as JSON."""
    return msgspec.json.encode(reply)


def reply_to(request: ToolCallRequested, reply: CallReply, cipher: Cipher) -> bytes:
    """A message of the response channel as it is stored: encrypted if the request is."""
    data = encode_reply(reply)
    return cipher.seal(data, reply_owner(request.correlation_id)) if request.sealed else data


def decode_reply(data: bytes, correlation_id: str = "", *, cipher: Cipher, sealed: bool = False) -> CallReply:
    """A message of the response channel of a call, whose request was `sealed` or not.

    A clear terminal reply to a sealed request, or to any while the cipher is strict, ends the call as unknown.

    Raises:
        msgspec.DecodeError: `data` is no such message.
        DecryptionError: it is encrypted, and the cipher cannot open it; or it is clear, not terminal, and refused.
    """
    forged = (sealed or cipher.strict) and not data.startswith(SEALED) and data != LOST_REPLY
    if data.startswith(SEALED):
        data = cipher.open(data, reply_owner(correlation_id))
    try:
        reply = _reply_decoder.decode(data)
    except (UnicodeDecodeError, RecursionError) as error:
        raise msgspec.DecodeError(str(error)) from error
    if forged and not isinstance(reply, CallFinished):
        raise DecryptionError(_NOT_SEALED)
    return CallFinished(_REFUSED) if forged else reply


_NOT_SEALED = (
    "the reply is not encrypted, though the request was: its worker has no ENCRYPTION_KEYS_FILE, or somebody without a"
    " key wrote it"
)
_REFUSED = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, _NOT_SEALED)
LOST_REPLY = encode_reply(
    CallFinished(
        ToolOutcome.failure(
            CallState.UNKNOWN,
            ErrorCode.LOST,
            "the call has ended, and Redis lost its reply; whether it took effect is not known",
        )
    )
)
"""Stands for the reply of a finished call whose response channel is lost."""


def finished(data: bytes, correlation_id: str, cipher: Cipher, *, sealed: bool = False) -> ToolOutcome:
    """The outcome in a terminal reply. A reply that was lost (empty `data`), or that the cipher cannot open, gives the
    outcome that says so.

    Raises:
        msgspec.DecodeError: `data` is no terminal reply.
    """
    try:
        reply = decode_reply(data or LOST_REPLY, correlation_id, cipher=cipher, sealed=sealed)
    except DecryptionError as error:
        return ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, str(error))
    if not isinstance(reply, CallFinished):
        raise msgspec.ValidationError("the stored reply of a finished call is not terminal")
    return reply.outcome


def unexpected(script: str, answer: Any) -> RuntimeError:
    """The error to raise for an answer that this release does not know."""
    return RuntimeError(f"{script} answered {answer!r}: do engine and workers run different releases of the contract?")
