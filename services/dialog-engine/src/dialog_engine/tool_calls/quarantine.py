"""Tools whose schema a model's provider refuses: left out and reported, so that one of them fails no request.

What one provider refuses may be fine for another: each model has its own.
"""

import logging
import re
from collections.abc import AsyncGenerator, Callable, Collection, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from dialog_engine.errors import LLMRequestError
from dialog_engine.model import ChatEvent, ChatRequest, Message, ToolMessage
from dialog_engine.tool_calls import tool_search
from dialog_engine.tool_calls.directory import Refused, ServerView, ToolDirectory
from dialog_engine.tool_calls.ports import StreamChat
from plugins_contract.catalog import ToolEntry
from plugins_contract.outcomes import ToolError

log = logging.getLogger(__name__)

MAX_REFUSED = 8
"""So many tools are left out of one request at most, one after the other: providers name the first bad one only."""

# Where providers say which tool they mean: by its place in the list, or by its name in quotes.
_PLACES = (r"function_declarations\[(\d+)\]", r"\btools\[(\d+)\]", r"\btools\.(\d+)\.", r"'tools', (\d+),")
_NAMES = r"['\"`“]([A-Za-z0-9_-]{1,64})['\"`”]"
_ABOUT_TOOLS = r"schema|parameters|function|tool"


def refused_tool(words: str, tools: Sequence[ToolEntry]) -> ToolEntry | None:
    """The one of `tools` that a provider's complaint is about, None when it names none."""
    if not re.search(_ABOUT_TOOLS, words, re.IGNORECASE):
        return None
    by_name = {tool.name: tool for tool in tools}
    for name in re.findall(_NAMES, words):
        if name in by_name:
            return by_name[name]
    for pattern in _PLACES:
        if (place := re.search(pattern, words)) and int(place[1]) < len(tools):
            return tools[int(place[1])]
    return None


class Quarantine:
    """The tools that models refuse, for as long as they stay as they are. Kept in memory: a restart asks anew."""

    def __init__(self, note: Callable[[ToolEntry, str], None] = lambda _, __: None) -> None:
        """`note` is told of each tool that is put in, and of the model that refuses it."""
        self._note = note
        self._refused: dict[str, dict[str, tuple[ToolEntry, str]]] = {}

    def reason(self, tool: ToolEntry, model: str) -> str | None:
        """Why that model is not offered the tool; None when it is, or it is not the tool any more that was refused."""
        refused, reason = self._refused.get(model, {}).get(tool.name, (None, None))
        return reason if refused == tool else None

    def reasons(self, tool: ToolEntry) -> dict[str, str]:
        """Why, by the name of each model that is not offered the tool."""
        return {model: reason for model in self._refused if (reason := self.reason(tool, model))}

    def by_all(self, tool: ToolEntry) -> bool:
        """No model is offered the tool."""
        return bool(self._refused) and all(self.reason(tool, model) for model in self._refused)

    def guard(self, llm: StreamChat, model: str) -> StreamChat:
        """`llm`, which is called `model`, asked again without a tool that it refuses by name, as long as it has said
        nothing yet."""
        self._refused[model] = {}

        def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
            return guarded(request) if request.tools else llm(request)

        async def guarded(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
            request = _without(request, [tool for tool in request.tools if self.reason(tool, model)])
            refused: list[tuple[ToolEntry, str]] = []
            while True:
                silent = True
                try:
                    async with aclosing(llm(request)) as events:
                        async for event in events:
                            if silent:
                                self._keep(refused, model)  # only now is it certain that these were what it was about
                                silent = False
                            yield event
                    return
                except LLMRequestError as error:
                    tool = refused_tool(str(error), request.tools) if silent and len(refused) < MAX_REFUSED else None
                    if tool is None:
                        raise
                    refused.append((tool, str(error)))
                    request = _without(request, [tool])

        return stream_chat

    def _keep(self, refused: Sequence[tuple[ToolEntry, str]], model: str) -> None:
        for tool, reason in refused:
            log.warning("%s is not offered the tool %s, because its provider refuses it: %s", model, tool.name, reason)
            self._refused[model][tool.name] = tool, reason
            self._note(tool, model)


def _without(request: ChatRequest, refused: Sequence[ToolEntry]) -> ChatRequest:
    """The request without these tools, of which a search has told nothing either."""
    if not refused:
        return request
    names = {tool.name for tool in refused}
    return replace(
        request,
        tools=tuple(tool for tool in request.tools if tool.name not in names),
        messages=tuple(_untold(message, names) for message in request.messages),
    )


def _untold(message: Message, names: Collection[str]) -> Message:
    match message:
        case ToolMessage(name=tool_search.NAME, content=content):
            return replace(message, content=tool_search.without(content, names))
        case _:
            return message


class OfferedTools(ToolDirectory):
    """The tools of another directory; those in quarantine are told of as such, with the models they are kept from."""

    def __init__(self, directory: ToolDirectory, quarantine: Quarantine) -> None:
        self._directory = directory
        self._quarantine = quarantine

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return tuple(map(self._seen, self._directory.servers))

    @property
    def workers(self) -> int:
        return self._directory.workers

    def tools(self) -> tuple[ToolEntry, ...]:
        return tuple(tool for tool in self._directory.tools() if not self._quarantine.by_all(tool))

    def find(self, name: str) -> ToolEntry | ToolError:
        return self._directory.find(name)

    def _seen(self, view: ServerView) -> ServerView:
        tools = view.catalog.tools
        refused = tuple(
            Refused(tool.tool, model, reason)
            for tool in tools
            for model, reason in self._quarantine.reasons(tool).items()
        )
        if not refused:
            return view
        kept = tuple(tool for tool in tools if not self._quarantine.by_all(tool))
        return replace(view, catalog=msgspec.structs.replace(view.catalog, tools=kept), refused=refused)
