"""What servers say of their tools for people and other programs than models: icons, output schemas, metadata.

It travels through the SDK's objects in `_meta`, under a name that only this worker writes. Pure.
"""

from typing import Any, cast

import msgspec
from mcp import types as sdk

from plugins_contract.catalog import IconEntry
from plugins_mcp.mcp.schemas import MAX_SCHEMA_BYTES, MAX_SCHEMA_DEPTH, members

MAX_META_BYTES = 8 * 1024
"""Of larger metadata only the part `ui` is kept, and nothing if that is too large as well."""
MAX_ICONS = 4
MAX_ICONS_READ = 64
MAX_ICON_CHARS = 8_192
"""The longest address of an icon: pages show those that are images in the address itself, and fetch none."""
_SHOWN = ("https://", "data:image/")
_NAME = "callstream/kept"


class Kept(msgspec.Struct, frozen=True):
    """What is kept of a tool. `for_model`: its metadata do not keep it from models."""

    for_model: bool = True
    output_schema: dict[str, Any] | None = None
    icons: tuple[IconEntry, ...] = ()
    meta: dict[str, Any] = {}


def put_aside(tool: dict[str, Any]) -> None:
    """Put what is kept of a raw tool where the SDK reads nothing of it. Whatever the server has put there is gone.

    Who may use the tool is decided before anything is left out, so that no size of its metadata changes it.
    """
    meta = tool.get("_meta")
    found = cast("dict[str, Any]", meta) if isinstance(meta, dict) else {}
    output = tool.pop("outputSchema", None)
    kept = Kept(
        _is_for_model(found),
        output if _fits(output, MAX_SCHEMA_BYTES) else None,
        msgspec.convert(kept_icons(tool.pop("icons", None)), tuple[IconEntry, ...]),
        _bounded(found),
    )
    tool["_meta"] = {_NAME: msgspec.to_builtins(kept)}  # the SDK writes and reads it as JSON


def kept_of(tool: sdk.Tool) -> Kept:
    """What was put aside of a tool."""
    kept = (tool.meta or {}).get(_NAME)
    return Kept() if kept is None else msgspec.convert(kept, Kept)


def kept_icons(icons: Any) -> list[dict[str, Any]]:
    """The first icons that a page could show, of the first MAX_ICONS_READ, with the fields that are read of them."""
    kept: list[dict[str, Any]] = []
    for icon in cast("list[Any]", icons)[:MAX_ICONS_READ] if isinstance(icons, list) else ():
        fields = cast("dict[str, Any]", icon) if isinstance(icon, dict) else {}
        source, mime_type, sizes = (fields.get(name) for name in ("src", "mimeType", "sizes"))
        if not isinstance(source, str) or len(source) > MAX_ICON_CHARS or not source.startswith(_SHOWN):
            continue
        known = cast("list[Any]", sizes)[:8] if isinstance(sizes, list) else []
        kept.append(
            {
                "src": source,
                "mimeType": mime_type[:100] if isinstance(mime_type, str) else None,
                "sizes": [each[:20] for each in known if isinstance(each, str)],
            }
        )
        if len(kept) == MAX_ICONS:
            break
    return kept


def _is_for_model(meta: dict[str, Any]) -> bool:
    """Whether the tool may be offered to models: unless its `visibility` (MCP Apps) is anything without `model`."""
    ui = meta.get("ui")
    if not isinstance(ui, dict) or "visibility" not in ui:
        return True
    visibility = cast("dict[str, Any]", ui)["visibility"]
    return isinstance(visibility, list) and "model" in visibility


def _bounded(meta: dict[str, Any]) -> dict[str, Any]:
    for part in (meta, {"ui": meta.get("ui")}):
        if _fits(part, MAX_META_BYTES):
            return part
    return {}


def _fits(value: Any, most: int) -> bool:
    """Whether it is an object, neither too deep nor too large. The depth comes first: encoding is recursive."""
    if not isinstance(value, dict):
        return False
    value = cast("dict[str, Any]", value)
    return all(depth <= MAX_SCHEMA_DEPTH for depth, _, _ in members(value)) and len(msgspec.json.encode(value)) <= most
