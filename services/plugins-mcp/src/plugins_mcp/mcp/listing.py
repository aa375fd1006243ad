"""A server's listing, and its translation into a catalog: names, execution classes, quarantined tools. Pure."""

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import msgspec
from mcp import types as sdk
from pydantic import ValidationError

from plugins_contract.catalog import (
    IconEntry,
    PromptArgument,
    PromptEntry,
    Quarantined,
    ResourceEntry,
    ServerCatalog,
    ToolEntry,
    exposed_name,
)
from plugins_mcp.mcp.content import characters
from plugins_mcp.mcp.kept import kept_icons, kept_of, put_aside
from plugins_mcp.mcp.policies import approval, execution_class
from plugins_mcp.mcp.schemas import unusable_schema
from plugins_mcp.mcp.spec import ServerSpec

MAX_DESCRIPTION_CHARS = 4096
MAX_INSTRUCTIONS_CHARS = 32_768
MAX_CATALOG_BYTES = 16 * 1024 * 1024
"""The most bytes of all tools of one server: engines keep them in memory, and Redis as one value."""
MAX_NAME_CHARS = 200
"""Characters of a name that are kept, except that of a tool, which is needed whole."""
MAX_URI_CHARS = 2_048
"""Resources with a longer address are left out."""
MAX_OTHERS = 1_000
"""The most prompts, and tools in quarantine, of one server that are listed."""
MAX_RESOURCES = 10_000
MAX_RESOURCES_BYTES = 4 * 1024 * 1024
"""The most resources of one server that are listed, and their bytes."""
LEAST_TTL_SECONDS = 5.0
"""A list that its server lets be kept for a shorter time is kept for so long."""
LEFT_OUT = "callstream/left-out"
"""The field of the metadata of a page that says how many of its items were not read."""
MAX_PER_PAGE = 5_000
"""The most items of one page that are read. The SDK reads them in the event loop, in 10 microseconds each."""
MAX_ARGUMENTS = 100
"""The most arguments of a prompt that are listed."""
_READ = {
    "tools": (
        "name",
        "title",
        "description",
        "inputSchema",
        "annotations",
        "execution",
        "outputSchema",
        "icons",
        "_meta",
    ),
    "resources": ("uri", "name", "title", "description", "mimeType"),
    "resourceTemplates": ("uriTemplate", "name", "title", "description", "mimeType"),
    "prompts": ("name", "title", "description", "arguments"),
}
"""The lists of the pages of a listing, and what is read of their items."""
LISTS = _READ.keys()
BOUNDED = LISTS | {"serverInfo", "capabilities", "protocolVersion"}
"""The fields of listings and of the introduction of a server that are bounded here."""
MAX_VERSION_CHARS = 50
"""Characters of the version of the protocol that a server wants: the SDK names it in its error."""


@dataclass(frozen=True)
class Listing:
    """Everything that one server listed. `malformed` are the tools that the SDK could not have read (`unread`: how
    many other items). `ttl_ms` is the shortest time for which a list may be kept, where the server says so."""

    info: sdk.Implementation | None = None
    instructions: str | None = None
    tools: tuple[sdk.Tool, ...] = ()
    malformed: tuple[Quarantined, ...] = ()
    resources: tuple[sdk.Resource, ...] = ()
    templates: tuple[sdk.ResourceTemplate, ...] = ()
    prompts: tuple[sdk.Prompt, ...] = ()
    unread: int = 0
    ttl_ms: int | None = dataclasses.field(default=None, compare=False)

    def kept_for(self, most: float) -> float:
        """For how many seconds it is used before the server is listed again, if it announces no change."""
        return min(most, max(self.ttl_ms / 1000, LEAST_TTL_SECONDS)) if self.ttl_ms else most


def bound_introduction(result: dict[str, Any]) -> None:
    """Remove from the raw result of a handshake what is not used, and may be as large as a message."""
    if isinstance(capabilities := result.get("capabilities"), dict):
        cast("dict[str, Any]", capabilities).pop("experimental", None)
    if isinstance(info := result.get("serverInfo"), dict) and "icons" in info:
        info["icons"] = kept_icons(cast("dict[str, Any]", info)["icons"])
    if isinstance(version := result.get("protocolVersion"), str):
        result["protocolVersion"] = version[:MAX_VERSION_CHARS]


def bound_page(result: dict[str, Any]) -> int:
    """Reduce a raw page of a listing to what is read of it. Returns about how many characters it had."""
    size = characters([result], MAX_CATALOG_BYTES)
    result.pop("_meta", None)
    for name, fields in _READ.items():
        if isinstance(items := result.get(name), list):
            result[name] = [_reduced(item, fields) for item in cast("list[Any]", items)[:MAX_PER_PAGE]]
            if (unread := len(cast("list[Any]", items)) - MAX_PER_PAGE) > 0:
                result["_meta"] = {LEFT_OUT: unread}
    return size


def _reduced(item: Any, fields: Sequence[str]) -> Any:
    if not isinstance(item, dict):
        return item
    reduced = {name: cast("dict[str, Any]", item)[name] for name in fields if name in item}
    if isinstance(arguments := reduced.get("arguments"), list):
        reduced["arguments"] = cast("list[Any]", arguments)[:MAX_ARGUMENTS]
    return reduced


def remove_malformed_tools(result: dict[str, Any]) -> list[Quarantined]:
    """Remove the tools that the SDK cannot read from a raw `tools/list` result, which is changed in place.

    The SDK rejects a whole listing because of one such tool. What is kept for pages is put aside (`kept`), output
    schemas too: with them the SDK discards the answer of a tool that ran but violates its own schema, and the call's
    outcome would be unknown.
    """
    tools = result.get("tools")
    if not isinstance(tools, list):
        return []
    kept: list[Any] = []
    quarantined: list[Quarantined] = []
    for tool in cast("list[Any]", tools):
        if isinstance(tool, dict):
            put_aside(cast("dict[str, Any]", tool))
        if reason := _malformed(tool):
            name = cast("dict[str, Any]", tool).get("name") if isinstance(tool, dict) else None
            quarantined.append(Quarantined(tool=str(name), reason=reason))
        else:
            kept.append(tool)
    result["tools"] = kept
    return quarantined


def to_catalog(spec: ServerSpec, listing: Listing) -> ServerCatalog:
    """The server's catalog; equal listings give equal catalogs."""
    resources = _resources(listing)
    entries: list[ToolEntry] = []
    size = 0
    quarantined = list(listing.malformed)
    times = Counter(tool.name for tool in listing.tools)
    for tool in listing.tools:
        if spec.options.tool(tool.name).disabled:
            continue
        if reason := "listed more than once" if times[tool.name] > 1 else _unusable(tool):
            quarantined.append(Quarantined(tool=tool.name, reason=reason))
            continue
        entry = _entry(spec, tool)
        size += len(msgspec.json.encode(entry))
        if size > MAX_CATALOG_BYTES:
            quarantined.append(Quarantined(tool=tool.name, reason=f"the tools exceed {MAX_CATALOG_BYTES} bytes in all"))
        else:
            entries.append(entry)
    return ServerCatalog(
        server=spec.name,
        session=spec.options.session,
        title=_trimmed(listing.info.title or listing.info.name, MAX_NAME_CHARS) if listing.info else None,
        version=_trimmed(listing.info.version, MAX_NAME_CHARS) if listing.info else None,
        icons=tuple(_icon(each) for each in listing.info.icons or ()) if listing.info else (),
        instructions=listing.instructions and _trimmed(listing.instructions, MAX_INSTRUCTIONS_CHARS),
        tools=tuple(sorted(entries, key=lambda entry: entry.name)),
        quarantined=tuple(dict.fromkeys(map(_short, quarantined)))[:MAX_OTHERS],
        resources=resources,
        prompts=tuple(
            PromptEntry(
                name=_trimmed(prompt.name, MAX_NAME_CHARS),
                title=prompt.title and _trimmed(prompt.title, MAX_NAME_CHARS),
                description=_trimmed(prompt.description or ""),
                fields=tuple(map(_argument, prompt.arguments or ()))[:MAX_ARGUMENTS],
                arguments=tuple(_trimmed(each.name, MAX_NAME_CHARS) for each in prompt.arguments or ())[:MAX_ARGUMENTS],
            )
            for prompt in listing.prompts[:MAX_OTHERS]
        ),
        left_out=len(listing.resources)
        + len(listing.templates)
        - len(resources)
        + max(0, len(listing.prompts) - MAX_OTHERS)
        + listing.unread,
    )


def without_trust(spec: ServerSpec, catalog: ServerCatalog) -> ServerCatalog:
    """The server's catalog as if it were not trusted: its annotations spare no approval, and allow no repetition."""
    options = dataclasses.replace(spec.options, trust=False)

    def changed(tool: ToolEntry) -> ToolEntry:
        annotations = sdk.ToolAnnotations.model_validate(tool.annotations)
        return msgspec.structs.replace(
            tool,
            execution_class=execution_class(options, tool.tool, annotations),
            approval=approval(options, tool.tool, annotations),
        )

    return msgspec.structs.replace(catalog, tools=tuple(map(changed, catalog.tools)))


def _entry(spec: ServerSpec, tool: sdk.Tool) -> ToolEntry:
    annotations, kept = tool.annotations, kept_of(tool)
    return ToolEntry(
        name=exposed_name(spec.name, tool.name),
        server=spec.name,
        tool=tool.name,
        title=tool.title or (annotations.title if annotations else None),
        description=_trimmed(tool.description or ""),
        input_schema=tool.input_schema,
        annotations=annotations.model_dump(by_alias=True, exclude_none=True, mode="json") if annotations else {},
        execution_class=execution_class(spec.options, tool.name, annotations),
        timeout_ms=spec.options.tool(tool.name).timeout_ms or spec.options.timeout_ms,
        approval=approval(spec.options, tool.name, annotations),
        for_model=kept.for_model,
        output_schema=kept.output_schema,
        icons=kept.icons,
        meta=kept.meta,
    )


def _resources(listing: Listing) -> tuple[ResourceEntry, ...]:
    """Those that are kept; of many the first, with templates before all others."""
    templates = ((item.uri_template, item, True) for item in listing.templates)
    plain = ((item.uri, item, False) for item in listing.resources)
    kept: list[ResourceEntry] = []
    size = 0
    for uri, item, template in (*templates, *plain):
        if len(uri) > MAX_URI_CHARS:
            continue
        entry = ResourceEntry(
            uri=uri,
            name=_trimmed(item.name, MAX_NAME_CHARS),
            title=item.title and _trimmed(item.title, MAX_NAME_CHARS),
            description=_trimmed(item.description or ""),
            mime_type=item.mime_type and _trimmed(item.mime_type, MAX_NAME_CHARS),
            template=template,
        )
        size += len(msgspec.json.encode(entry))
        if size > MAX_RESOURCES_BYTES or len(kept) == MAX_RESOURCES:
            break
        kept.append(entry)
    return tuple(kept)


def _argument(argument: sdk.PromptArgument) -> PromptArgument:
    described, name = argument.description or "", _trimmed(argument.name, MAX_NAME_CHARS)
    return PromptArgument(name=name, description=_trimmed(described, MAX_NAME_CHARS), required=bool(argument.required))


def _icon(icon: sdk.Icon) -> IconEntry:
    return IconEntry(src=icon.src, mime_type=icon.mime_type, sizes=tuple(icon.sizes or ()))


def _short(found: Quarantined) -> Quarantined:
    return msgspec.structs.replace(found, tool=found.tool[:MAX_NAME_CHARS])


def _trimmed(text: str, limit: int = MAX_DESCRIPTION_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _malformed(tool: Any) -> str | None:
    try:
        schema = sdk.Tool.model_validate(tool, by_name=False).input_schema
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        return f"malformed: {'.'.join(str(part) for part in first['loc'])}: {first['msg']}"
    return None if schema.get("type") == "object" else "the input schema is not of type object"


def _unusable(tool: sdk.Tool) -> str | None:
    if not tool.name:
        return "the tool has no name"
    if tool.execution is not None and tool.execution.task_support == "required":
        return "the tool runs only as an MCP task, which is not supported"
    return unusable_schema(tool.input_schema)
