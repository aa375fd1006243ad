"""The `tools` of a request for the Responses API: functions of the client, and the servers of ours that it narrows the
model to. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from dialog_engine.facades.images import RefusedError
from dialog_engine.facades.openai.request import check_json, must_call, storable
from dialog_engine.model import ClientTool
from dialog_engine.tool_calls.client_tools import MAX_TOOLS
from plugins_contract.choice import MAX_ENTRIES, MAX_ENTRY_CHARS, ToolChoice

_OWN = "servers are those of this engine, named by `server_label`: leave this out"
_NOT_OURS = {"server_url": _OWN, "connector_id": _OWN, "headers": _OWN, "authorization": _OWN, "tunnel_id": _OWN}


@dataclass(frozen=True, slots=True)
class Wanted:
    """The servers that are named, in their order, with the tools that may be used; None for all that the sender may
    use. `ask` are `server/tool` whose calls need approval in any case; `*` stands for any characters. `functions` are
    those of the client, by their place in `tools`; `must_call` as in `Sampling`."""

    labels: tuple[str, ...] = ()
    choice: ToolChoice | None = None
    ask: tuple[str, ...] = ()
    functions: Mapping[int, ClientTool] = field(default_factory=dict[int, ClientTool])
    must_call: str = ""


def wanted_tools(tools: Sequence[Mapping[str, Any]], tool_choice: object) -> Wanted:
    """What a request wants. Raises RefusedError: it cannot be honoured."""
    if tool_choice == "required" and not tools:
        raise RefusedError("tool_choice", "must be auto or none without `tools`")
    if len(tools) > MAX_TOOLS + MAX_ENTRIES:
        raise RefusedError(
            "tools", f"has {len(tools)} tools; {MAX_TOOLS} functions and {MAX_ENTRIES} servers are allowed"
        )
    labels: list[str] = []
    allow: list[str] = []
    ask: list[str] = []
    functions: dict[int, ClientTool] = {}
    for number, tool in enumerate(tools):
        if tool.get("type") == "function":
            functions[number] = _function(tool, f"tools[{number}]")
            continue
        label = _label(tool, f"tools[{number}]")
        if label in labels:
            raise RefusedError(f"tools[{number}].server_label", f"{label!r} is named before: name each server once")
        labels.append(label)
        allow += _entries(label, tool.get("allowed_tools"), f"tools[{number}].allowed_tools")
        ask += _asked(label, tool.get("require_approval"), f"tools[{number}].require_approval")
    if max(len(labels), len(allow), len(ask)) > MAX_ENTRIES:
        why = f"more than {MAX_ENTRIES} servers, or tools of them, are named: name servers without allowed_tools"
        raise RefusedError("tools", why)
    if tool_choice == "none":
        return Wanted(choice=ToolChoice(servers=()))
    choice = ToolChoice(servers=tuple(labels), allow=tuple(allow)) if labels else None
    first = must_call(tool_choice, {each.name for each in functions.values()})
    return Wanted(tuple(labels), choice, tuple(ask), functions, first)


def _function(tool: Mapping[str, Any], where: str) -> ClientTool:
    name, about, parameters = tool.get("name"), tool.get("description"), tool.get("parameters")
    if not isinstance(name, str):
        raise RefusedError(f"{where}.name", "must be the name of the function")
    if not isinstance(about, str | None):
        raise RefusedError(f"{where}.description", "must be a text")
    if not isinstance(parameters, dict | None):
        raise RefusedError(f"{where}.parameters", "must be a JSON Schema")
    described = storable(about, f"{where}.description")
    return ClientTool(name, described, cast("dict[str, Any] | None", parameters) or {"type": "object"})


def _label(tool: Mapping[str, Any], where: str) -> str:
    if tool.get("type") != "mcp":
        raise RefusedError(f"{where}.type", "must be function or mcp: nothing else is understood")
    for name, why in _NOT_OURS.items():
        if tool.get(name):
            raise RefusedError(f"{where}.{name}", why)
    label = tool.get("server_label")
    if not isinstance(label, str) or not label or "/" in label or len(label) > MAX_ENTRY_CHARS:
        raise RefusedError(f"{where}.server_label", "must be the name of a server from `GET /v1/tools`")
    return label


def _entries(label: str, allowed: object, where: str) -> list[str]:
    """The tools that `allowed_tools`, or a filter of `require_approval`, names."""
    if isinstance(allowed, dict):
        names = cast("dict[str, object]", allowed)
        if names.get("read_only") is not None:
            raise RefusedError(f"{where}.read_only", "is not available here: use tool_names")
        allowed = names.get("tool_names")
    if allowed is None:
        return [f"{label}/*"]
    given = cast("list[object]", allowed) if isinstance(allowed, list) else [None]
    most = MAX_ENTRY_CHARS - len(label) - 1
    if not all(isinstance(each, str) and 0 < len(each) <= most and "\0" not in each for each in given):
        raise RefusedError(where, "must have names of tools")
    return [f"{label}/{each}" for each in given]


def _asked(label: str, required: object, where: str) -> list[str]:
    """What needs approval by this request. What the server's own policy asks for is asked in any case."""
    if required in (None, "never"):
        return []
    if required == "always":
        return [f"{label}/*"]
    if not isinstance(required, dict):
        raise RefusedError(where, "must be always, never, or an object with always and never")
    always = cast("dict[str, object]", required).get("always")
    return [] if always is None else _entries(label, always, f"{where}.always")


_SAID = {
    "function": ("name", "description", "parameters", "strict"),
    "mcp": ("server_label", "server_description", "allowed_tools", "require_approval"),
}
_MUST_SAY = {"description": None, "parameters": None, "strict": None}


def said_tools(tools: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What a response says of the tools of its request, which `wanted_tools` has read. Raises RefusedError: a field
    cannot be stored."""
    said: list[dict[str, Any]] = []
    for number, tool in enumerate(tools):
        kind = tool["type"]
        known = {name: tool[name] for name in _SAID[kind] if name in tool}
        for name, value in known.items():
            check_json(value, f"tools[{number}].{name}")
        said.append({"type": kind, **(_MUST_SAY if kind == "function" else {}), **known})
    return said
