"""Quarantine for tools whose schema a model's provider refuses.

Such a tool is left out of requests and reported, so that one bad schema does not make every request fail. Each model
has its own list, because what one provider refuses another may accept.
"""

import logging
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from dialog_engine.errors import LLMRequestError
from dialog_engine.model import ChatRequest, Message, ToolMessage
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.exposure import search
from dialog_engine.tool_calls.ports import OpenChat
from plugins_contract.catalog import ToolEntry

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
        self.refused: dict[str, dict[str, tuple[ToolEntry, str]]] = {}
        """By model and name: each tool as it was refused, with the reason."""

    def reason(self, tool: ToolEntry, model: str) -> str | None:
        """Why that model is not offered the tool; None when it is offered, or has changed since it was refused."""
        refused, reason = self.refused.get(model, {}).get(tool.name, (None, None))
        return reason if refused == tool else None

    def reasons(self, tool: ToolEntry) -> dict[str, str]:
        """The reason for each model that is not offered the tool, by the model's name."""
        return {model: reason for model in self.refused if (reason := self.reason(tool, model))}

    def by_all(self, tool: ToolEntry) -> bool:
        """Whether no model is offered the tool."""
        return bool(self.refused) and all(self.reason(tool, model) for model in self.refused)

    def refused_by(self, model: str) -> Mapping[str, tuple[ToolEntry, str]]:
        """The tools that were refused by that model, each with the reason. It begins without any."""
        return self.refused.setdefault(model, {})

    def without_refused(self, request: ChatRequest, model: str) -> ChatRequest:
        """The request without the tools that the model is not offered."""
        return _without(request, [tool for tool in request.tools if self.reason(tool, model)])

    async def ask_again(self, llm: OpenChat, model: str, request: ChatRequest, error: LLMRequestError) -> ModelStream:
        """Repeat a request that was refused with `error`, without the tool that this names, as often as one is named.

        Raises:
            LLMError: what the request failed with in the end.
        """
        refused: list[tuple[ToolEntry, str]] = []
        while tool := refused_tool(str(error), request.tools) if len(refused) < MAX_REFUSED else None:
            refused.append((tool, str(error)))
            request = _without(request, [tool])
            try:
                stream = await llm(request)
            except LLMRequestError as again:
                error = again
            else:
                of_client = request.turn.client_tools()  # which are the turn's, and nobody else's
                # The reply shows that these tools were the reason.
                self._keep([each for each in refused if each[0].name not in of_client], model)
                return stream
        raise error

    def _keep(self, refused: Sequence[tuple[ToolEntry, str]], model: str) -> None:
        for tool, reason in refused:
            log.warning(
                "model %s is no longer offered the tool %s, because its provider refuses it: %s",
                model,
                tool.name,
                reason,
            )
            self.refused[model][tool.name] = tool, reason
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
