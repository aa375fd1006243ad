"""The pins of a trusted server: the tools that were accepted, and those that are held back until an operator does so.

Trust means that a server's annotations decide whether a call runs twice and whether a person has to approve it. So
trust is given to what was seen, not to whatever the server says later. The tools of the first listing are accepted; a
tool that is new or changed after that is held back.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
from redis.asyncio import Redis

from plugins_contract.catalog import ToolEntry
from plugins_contract.keys import Keys

_ACCEPTED, _HELD = b"accepted:", b"held:"


class PinnedTool(msgspec.Struct, frozen=True, rename="camel"):
    """What a pin covers: everything that a server says about a tool."""

    tool: str
    title: str | None
    description: str
    input_schema: dict[str, Any]
    annotations: dict[str, Any]


def pinned(entry: ToolEntry) -> PinnedTool:
    """What the pin of this tool covers."""
    return PinnedTool(entry.tool, entry.title, entry.description, entry.input_schema, entry.annotations)


@dataclass(frozen=True, slots=True)
class Pins:
    """The pins of one server, by the name of the tool on it."""

    accepted: Mapping[str, PinnedTool]
    held: Mapping[str, PinnedTool]


class PinStore:
    """Reads and writes pins. Raises what redis raises."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis: Any = redis  # redis-py types its commands only partly
        self._keys = keys

    async def read(self, server: str) -> Pins:
        """The pins of a server; empty for one that was never listed."""
        fields: dict[bytes, bytes] = await self._redis.hgetall(self._keys.pins_of(server))
        return Pins(_tools(fields, _ACCEPTED), _tools(fields, _HELD))

    async def accept(self, server: str, tools: Mapping[str, PinnedTool], *, replace: bool) -> None:
        """Accept these tools. Without `replace`, a tool that has a pin keeps it: another worker was first."""
        pipeline = self._redis.pipeline(transaction=True)
        for name, tool in tools.items():
            write = pipeline.hset if replace else pipeline.hsetnx
            write(self._keys.pins_of(server), _ACCEPTED + name.encode(), _encoded(tool))
            if replace:
                pipeline.hdel(self._keys.pins_of(server), _HELD + name.encode())
        if tools:
            await pipeline.execute()

    async def hold(self, server: str, tools: Mapping[str, PinnedTool], *, no_longer: frozenset[str]) -> None:
        """Record which tools are held back, for operators, and forget those that are `no_longer`."""
        pipeline = self._redis.pipeline(transaction=True)
        for name, tool in tools.items():
            pipeline.hset(self._keys.pins_of(server), _HELD + name.encode(), _encoded(tool))
        if no_longer:
            pipeline.hdel(self._keys.pins_of(server), *(_HELD + name.encode() for name in no_longer))
        await pipeline.execute()

    async def servers(self) -> list[str]:
        """The servers that workers publish."""
        names: set[bytes] = await self._redis.smembers(self._keys.catalog)
        return sorted(name.decode() for name in names)


def _encoded(tool: PinnedTool) -> bytes:
    return msgspec.json.encode(tool, order="deterministic")


def _tools(fields: Mapping[bytes, bytes], kind: bytes) -> dict[str, PinnedTool]:
    return {
        name.removeprefix(kind).decode(): msgspec.json.decode(value, type=PinnedTool)
        for name, value in fields.items()
        if name.startswith(kind)
    }
