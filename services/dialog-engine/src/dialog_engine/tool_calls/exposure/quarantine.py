"""Quarantine for tools whose schema a model's provider refuses.

Such a tool is left out of requests and reported, so that one bad schema does not make every request fail. Each model
has its own list, because what one provider refuses another may accept.
"""

import logging
import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

import msgspec

from dialog_engine.errors import LLMRequestError
from dialog_engine.model import ChatRequest, Message, ToolMessage
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.arguments import unusable_schema
from dialog_engine.tool_calls.exposure import search
from dialog_engine.tool_calls.exposure.allowed import ToolRights
from dialog_engine.tool_calls.ports import OpenChat, RefusedTool, ServerView, ToolDirectory
from plugins_contract.catalog import Quarantined, ToolEntry
from plugins_contract.outcomes import ToolError

log = logging.getLogger(__name__)

MAX_REFUSED = 8
"""The most tools that are left out of one request, one after the other: providers name only the first bad one."""

# Providers name the tool by its position in the list, or by its name in quotes.
_POSITIONS = (r"function_declarations\[(\d+)\]", r"\btools\[(\d+)\]", r"\btools\.(\d+)\.", r"'tools', (\d+),")
_NAMES = r"['\"`“]([A-Za-z0-9_-]{1,64})['\"`”]"
_ABOUT_TOOLS = r"schema|parameters|function|tool"


def refused_tool(message: str, tools: Sequence[ToolEntry]) -> ToolEntry | None:
    """The one of `tools` that the error message of a provider is about; None when it names none."""
    if not re.search(_ABOUT_TOOLS, message, re.IGNORECASE):
        return None
    by_name = {tool.name: tool for tool in tools}
    for name in re.findall(_NAMES, message):
        if name in by_name:
            return by_name[name]
    for pattern in _POSITIONS:
        if (place := re.search(pattern, message)) and int(place[1]) < len(tools):
            return tools[int(place[1])]
    return None


class Quarantine:
    """The tools that providers refuse, by model. It is kept in memory, and an entry ends when the tool changes."""

    def __init__(self, note: Callable[[ToolEntry, str], None] = lambda _, __: None) -> None:
        """`note` is called with each tool that is added, and the model that it is kept from."""
        self._note = note
        self._refused: dict[str, dict[str, tuple[ToolEntry, str]]] = {}

    def reason(self, tool: ToolEntry, model: str) -> str | None:
        """Why that model is not offered the tool; None when it is offered, or has changed since it was refused."""
        refused, reason = self._refused.get(model, {}).get(tool.name, (None, None))
        return reason if refused == tool else None

    def reasons(self, tool: ToolEntry) -> dict[str, str]:
        """The reason for each model that is not offered the tool, by the model's name."""
        return {model: reason for model in self._refused if (reason := self.reason(tool, model))}

    def by_all(self, tool: ToolEntry) -> bool:
        """Whether no model is offered the tool."""
        return bool(self._refused) and all(self.reason(tool, model) for model in self._refused)

    def guard(self, llm: OpenChat, model: str) -> OpenChat:
        """`llm`, which has the name `model`, such that a request is repeated without a tool that the provider refuses.

        It is repeated only while the reply has not begun.
        """
        self._refused[model] = {}

        async def open_chat(request: ChatRequest) -> ModelStream:
            request = _without(request, [tool for tool in request.tools if self.reason(tool, model)])
            refused: list[tuple[ToolEntry, str]] = []
            while True:
                try:
                    stream = await llm(request)
                except LLMRequestError as error:
                    tool = refused_tool(str(error), request.tools) if len(refused) < MAX_REFUSED else None
                    if tool is None:
                        raise
                    refused.append((tool, str(error)))
                    request = _without(request, [tool])
                else:
                    self._keep(refused, model)  # the reply shows that these tools were the reason
                    return stream

        return open_chat

    def _keep(self, refused: Sequence[tuple[ToolEntry, str]], model: str) -> None:
        for tool, reason in refused:
            log.warning(
                "model %s is no longer offered the tool %s, because its provider refuses it: %s",
                model,
                tool.name,
                reason,
            )
            self._refused[model][tool.name] = tool, reason
            self._note(tool, model)


def _without(request: ChatRequest, refused: Sequence[ToolEntry]) -> ChatRequest:
    """The request without these tools, also in the answers of searches."""
    if not refused:
        return request
    names = {tool.name for tool in refused}
    return replace(
        request,
        tools=tuple(tool for tool in request.tools if tool.name not in names),
        messages=tuple(_without_found(message, names) for message in request.messages),
    )


def _without_found(message: Message, names: Collection[str]) -> Message:
    match message:
        case ToolMessage(name=search.NAME, content=content):
            return replace(message, content=search.without(content, names))
        case _:
            return message


class OfferedTools(ToolDirectory):
    """The tools of another directory, without those in quarantine, which its servers list with the reasons.

    Also in quarantine is a tool whose schema could not be applied to a call, such as one that takes too long.

    With `rights` each sender sees what these allow.
    """

    def __init__(self, directory: ToolDirectory, quarantine: Quarantine, rights: ToolRights | None = None) -> None:
        self._directory = directory
        self._quarantine = quarantine
        self._rights = rights

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return tuple(map(self._seen, self._directory.servers))

    @property
    def workers(self) -> int:
        return self._directory.workers

    def tools(self) -> tuple[ToolEntry, ...]:
        return tuple(tool for tool in self._directory.tools() if self._offered(tool))

    def find(self, name: str) -> ToolEntry | ToolError:
        return self._directory.find(name)

    def visible_to(self, subject: str, roles: Sequence[str]) -> ToolDirectory:
        return self._rights.restricted(self, subject, roles) if self._rights else self

    def _seen(self, view: ServerView) -> ServerView:
        tools = view.catalog.tools
        refused = tuple(
            RefusedTool(tool.tool, model, reason)
            for tool in tools
            for model, reason in self._quarantine.reasons(tool).items()
        )
        unusable = tuple(
            Quarantined(tool=tool.tool, reason=reason) for tool in tools if (reason := unusable_schema(tool))
        )
        if not refused and not unusable:
            return view
        kept = tuple(tool for tool in tools if self._offered(tool))
        quarantined = (*view.catalog.quarantined, *unusable)
        catalog = msgspec.structs.replace(view.catalog, tools=kept, quarantined=quarantined)
        return replace(view, catalog=catalog, refused=refused)

    def _offered(self, tool: ToolEntry) -> bool:
        return not self._quarantine.by_all(tool) and unusable_schema(tool) is None
