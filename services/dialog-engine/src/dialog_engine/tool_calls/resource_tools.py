"""`list_resources` and `read_resource`: the resources of servers for a model, whose message may use them."""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol

import msgspec

from dialog_engine.model import ToolCall, Turn
from dialog_engine.tool_calls.local_tools import LocalTool, local_entry
from dialog_engine.tool_calls.ports import ToolDirectory
from plugins_contract.catalog import ResourceEntry, ServerCatalog, ServerState, ToolEntry
from plugins_contract.choice import ToolChoice
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.reads import RESOURCE, Part, ReadKind, ResourceRead, unusable_uri

LIST_RESOURCES = "list_resources"
READ_RESOURCE = "read_resource"
MAX_LISTED = 50
MAX_DESCRIPTION = 200
NOTES = 300
"""The characters of an answer beside what it lists or reads."""
READ_MS = 25_000
"""How long a read may take: when its worker is killed, another one reads after about twelve seconds."""


class ResourceReader(Protocol):
    """Reads resources of servers."""

    async def read(
        self,
        kind: ReadKind,
        server: str,
        name: str,
        arguments: dict[str, Any],
        *,
        subject: str,
        session_id: str = ...,
        roles: tuple[str, ...] = (),
        choice: ToolChoice | None = None,
        timeout_ms: int = ...,
    ) -> ToolOutcome:
        """The outcome of a read for this sender, in a message with this choice."""
        ...


async def _ignored(turn: Turn, server: str, name: str) -> None:
    pass


def usable(source: ToolDirectory, server: str = "") -> list[ServerCatalog]:
    """The catalogs of the servers that are not disabled, or of this one."""
    catalogs = [view.catalog for view in source.servers if view.state is not ServerState.DISABLED]
    return [catalog for catalog in catalogs if server in ("", catalog.server)]


def resource_of(call: ToolCall) -> tuple[str, str]:
    """Server and URI of a call of `read_resource` that has succeeded."""
    arguments = msgspec.json.decode(call.arguments)
    return arguments["server"], arguments["uri"]


class ListResources(LocalTool):
    """Lists the resources that the message may read, and templates of them, in pages of about `max_chars`."""

    def __init__(self, source: ToolDirectory, max_chars: int) -> None:
        self._source = source
        self._max_chars = max_chars

    @property
    def entry(self) -> ToolEntry:
        text = {"type": "string", "maxLength": 200}
        offset = {"type": "integer", "minimum": 0, "description": "Where to go on in a long list."}
        query = text | {"description": "A part of the name, title or URI."}
        properties = {"server": text, "query": query, "offset": offset}
        about = "List resources (documents, records) of the connected servers; read one with read_resource."
        return local_entry(LIST_RESOURCES, about, {"type": "object", "properties": properties})

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        source = self._source.visible_to(turn.subject, turn.roles, turn.choice.tools)
        offset = arguments.get("offset", 0)
        found = [*_found(source, arguments.get("server", ""), arguments.get("query", "").lower())]
        listed: list[dict[str, Any]] = []
        room = self._max_chars - NOTES
        for server, entry in found[offset : offset + MAX_LISTED]:
            shown = _listed(server, entry)
            room -= len(msgspec.json.encode(shown))
            if room < 0 and listed:
                break
            listed.append(shown)
        end = offset + len(listed)
        more = max(0, len(found) - end)
        return _answered({"resources": listed, "more": more} | ({"nextOffset": end} if more else {}))


class ReadResource(LocalTool):
    """Reads a page of a resource, of about `max_chars`; the rest is read with `offset`."""

    seconds = READ_MS / 1000 + 3  # the engine waits for two seconds after the deadline

    def __init__(
        self,
        source: ToolDirectory,
        reader: ResourceReader,
        max_chars: int,
        on_refused: Callable[[Turn, str, str], Awaitable[None]] = _ignored,
    ) -> None:
        """`on_refused` gets server and name of what the message may not read."""
        self._source = source
        self._reader = reader
        self._page_chars = max_chars - NOTES
        self._on_refused = on_refused

    @property
    def entry(self) -> ToolEntry:
        properties = {
            "server": {"type": "string"},
            "uri": {"type": "string", "description": "Of list_resources or of a result; a template filled in."},
            "offset": {"type": "integer", "minimum": 0, "description": "Where to read on in a long text."},
        }
        schema = {"type": "object", "properties": properties, "required": ["server", "uri"]}
        return local_entry(READ_RESOURCE, "Read a resource of a connected server.", schema)

    async def answer(self, turn: Turn, arguments: dict[str, Any]) -> ToolOutcome:
        server, uri, choice = arguments["server"], arguments["uri"], turn.choice.tools
        if wrong := unusable_uri(uri):
            return ToolOutcome.failure(CallState.FAILED, ErrorCode.INVALID_ARGUMENTS, wrong)
        source = self._source.visible_to(turn.subject, turn.roles, choice)
        if not source.allows(server, RESOURCE + uri):
            await self._on_refused(turn, server, RESOURCE + uri)
            return _not_found(server)
        if not (server and usable(source, server)):
            return _not_found(server)
        outcome = await self._reader.read(
            ReadKind.RESOURCE,
            server,
            RESOURCE + uri,
            {},
            subject=turn.subject,
            session_id=turn.session_id,
            roles=turn.roles,
            choice=choice,
            timeout_ms=READ_MS,
        )
        if outcome.error is not None and outcome.error.code is ErrorCode.PERMISSION_DENIED:
            await self._on_refused(turn, server, RESOURCE + uri)
            return _not_found(server)
        if outcome.error is not None:
            return outcome
        first = outcome.content[0] if outcome.content else None
        read = msgspec.json.decode(first.text if isinstance(first, TextBlock) else b"", type=ResourceRead)
        return _page(read, arguments.get("offset", 0), self._page_chars)


def _found(source: ToolDirectory, server: str, query: str) -> Iterator[tuple[str, ResourceEntry]]:
    for catalog in usable(source, server):
        for entry in catalog.resources:
            if not query or any(query in text.lower() for text in (entry.uri, entry.name, entry.title or "")):
                yield catalog.server, entry


def _listed(server: str, entry: ResourceEntry) -> dict[str, Any]:
    listed: dict[str, Any] = {"server": server, "uri": entry.uri, "name": entry.title or entry.name}
    if entry.description:
        listed["description"] = entry.description[:MAX_DESCRIPTION]
    return listed | ({"template": True} if entry.template else {})


def _page(read: ResourceRead, offset: int, length: int) -> ToolOutcome:
    text = "\n".join(map(_shown, read.contents))
    page, left = text[offset : offset + length], len(text) - offset - length
    about = {"uri": read.contents[0].uri if read.contents else "", "text": page}
    if left > 0:
        about |= {"left": left, "nextOffset": offset + length}
    return _answered(about)


def _shown(part: Part) -> str:
    if part.text is None:
        return f"[{part.uri}: data of type {part.mime_type or 'unknown'}, which is not text]"
    return part.text + (f"\n[… {part.left_out:,} bytes left out: too large …]" if part.left_out else "")


def _answered(content: dict[str, Any]) -> ToolOutcome:
    return ToolOutcome(CallState.SUCCEEDED, (TextBlock(msgspec.json.encode(content).decode()),))


def _not_found(server: str) -> ToolOutcome:
    message = f"server {server[:100]!r} has no such resource: list_resources says which there are"
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.RESOURCE_NOT_FOUND, message)
