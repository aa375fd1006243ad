"""The pins of a trusted server: the tools that were accepted, and those that are held back until an operator does so.

Trust means that a server's annotations decide whether a call runs twice and whether a person has to approve it. So
trust is given to what was seen, not to whatever the server says later. A tool that is new or changed after that is held
back. With request keys a pin counts only when it is signed (`trust.py`).
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.catalog import ToolEntry
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE
from plugins_contract.signing import RequestKeys
from plugins_contract.trust import pinned_at, sign_pin

_ACCEPTED, _HELD, _SIGNATURE = b"accepted:", b"held:", b"signature:"


class PinnedTool(msgspec.Struct, frozen=True, rename="camel"):
    """What a pin covers: everything that a server says about a tool, before the operator's own words take its place."""

    tool: str
    title: str | None
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any]
    for_model: bool = True


def pinned(entry: ToolEntry) -> PinnedTool:
    """What the pin of this tool covers."""
    return PinnedTool(
        entry.tool, entry.title, entry.description, entry.input_schema, entry.annotations, entry.for_model
    )


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of one server, by the name of the tool on it. `at_ms`: when each was accepted; 0 without keys."""

    accepted: Mapping[str, PinnedTool]
    held: Mapping[str, PinnedTool]
    at_ms: Mapping[str, int]


class PinStore:
    """Reads and writes pins, signed with `request_keys`. Raises what redis raises."""

    def __init__(self, redis: Redis, keys: Keys, request_keys: RequestKeys) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys
        self._request_keys = request_keys

    @property
    def signs(self) -> bool:
        """Whether pins are signed."""
        return bool(self._request_keys)

    async def read(self, server: str) -> Pins:
        """The pins of a server that are valid; empty for one that was never listed."""
        fields: dict[bytes, bytes] = await self._redis.hgetall(self._keys.pins_of(server))
        accepted: dict[str, PinnedTool] = {}
        held: dict[str, PinnedTool] = {}
        at_ms: dict[str, int] = {}
        for field, pin in fields.items():
            kind, tools = (_ACCEPTED, accepted) if field.startswith(_ACCEPTED) else (_HELD, held)
            if not field.startswith(kind):
                continue
            at = pinned_at(self._request_keys, server, field, pin, fields.get(_SIGNATURE + field, b""))
            with contextlib.suppress(*NOT_READABLE):  # no release of ours wrote that
                if at is not None:
                    name = field.removeprefix(kind).decode()
                    tools[name] = msgspec.json.decode(pin, type=PinnedTool)
                    if kind is _ACCEPTED:
                        at_ms[name] = at
        return Pins(accepted, held, at_ms)

    async def accept(self, server: str, tools: Mapping[str, PinnedTool], at_ms: int) -> None:
        """Accept these tools, at a time on the clock of Redis."""
        if tools:
            pipeline = self._redis.pipeline(transaction=True)
            self._put(pipeline, server, _ACCEPTED, tools, at_ms)
            self._remove(pipeline, server, _HELD, tools)
            await pipeline.execute()

    async def hold(
        self, server: str, tools: Mapping[str, PinnedTool], at_ms: int, *, no_longer: frozenset[str]
    ) -> None:
        """Record which tools are held back, for operators, and forget those that are `no_longer`."""
        pipeline = self._redis.pipeline(transaction=True)
        self._put(pipeline, server, _HELD, tools, at_ms)
        if no_longer:
            self._remove(pipeline, server, _HELD, no_longer)
        await pipeline.execute()

    def _put(self, pipeline: Any, server: str, kind: bytes, tools: Mapping[str, PinnedTool], at_ms: int) -> None:
        for name, tool in tools.items():
            pin, field = msgspec.json.encode(tool, order="deterministic"), kind + name.encode()
            signature = sign_pin(self._request_keys, server, field, at_ms, pin)
            pipeline.hset(self._keys.pins_of(server), mapping={field: pin, _SIGNATURE + field: signature})

    def _remove(self, pipeline: Any, server: str, kind: bytes, tools: Iterable[str]) -> None:
        fields = [kind + name.encode() for name in tools]
        pipeline.hdel(self._keys.pins_of(server), *fields, *(_SIGNATURE + field for field in fields))

    async def now_ms(self) -> int:
        """Unix milliseconds on the clock of Redis."""
        seconds, microseconds = await self._redis.time()
        return seconds * 1000 + microseconds // 1000

    async def servers(self) -> list[str]:
        """The servers that workers publish."""
        names: set[bytes] = await self._redis.smembers(self._keys.catalog)
        return sorted(name.decode() for name in names)
