"""Tools whose schema the model's provider refuses: left out and reported, so that one of them fails no request."""

import logging
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import replace

import msgspec

from dialog_engine.errors import LLMRequestError
from dialog_engine.model import ChatEvent, ChatRequest
from dialog_engine.tool_calls.directory import ServerView, ToolDirectory
from dialog_engine.tool_calls.ports import StreamChat
from plugins_contract.catalogue import Quarantined, ToolEntry
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
    """The tools that are refused, for as long as they stay as they are. Kept in memory: a restart asks anew."""

    def __init__(self, note: Callable[[ToolEntry], None] = lambda _: None) -> None:
        """`note` is told of each tool that is put in."""
        self._note = note
        self._refused: dict[str, tuple[ToolEntry, str]] = {}

    def reason(self, tool: ToolEntry) -> str | None:
        """Why the tool is left out; None when it is not, or is not the tool any more that was refused."""
        refused, reason = self._refused.get(tool.name, (None, None))
        return reason if refused == tool else None

    def guard(self, llm: StreamChat) -> StreamChat:
        """`llm`, asked again without a tool that it refuses by name, as long as it has said nothing yet."""

        def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
            return guarded(request) if request.tools else llm(request)

        async def guarded(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
            request = replace(request, tools=tuple(tool for tool in request.tools if self.reason(tool) is None))
            refused: list[tuple[ToolEntry, str]] = []
            while True:
                silent = True
                try:
                    async with aclosing(llm(request)) as events:
                        async for event in events:
                            if silent:
                                self._keep(refused)  # only now is it certain that these were what it was about
                                silent = False
                            yield event
                    return
                except LLMRequestError as error:
                    tool = refused_tool(str(error), request.tools) if silent and len(refused) < MAX_REFUSED else None
                    if tool is None:
                        raise
                    refused.append((tool, str(error)))
                    request = replace(request, tools=tuple(each for each in request.tools if each is not tool))

        return stream_chat

    def _keep(self, refused: Sequence[tuple[ToolEntry, str]]) -> None:
        for tool, reason in refused:
            log.warning("tool %s is left out, because the model's provider refuses it: %s", tool.name, reason)
            self._refused[tool.name] = tool, reason
            self._note(tool)


class OfferedTools(ToolDirectory):
    """The tools of another directory; those in quarantine are told of as such."""

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
        return tuple(tool for tool in self._directory.tools() if self._quarantine.reason(tool) is None)

    def find(self, name: str) -> ToolEntry | ToolError:
        return self._directory.find(name)

    def _seen(self, view: ServerView) -> ServerView:
        catalogue = view.catalogue
        reasons = {tool.name: reason for tool in catalogue.tools if (reason := self._quarantine.reason(tool))}
        if not reasons:
            return view
        aside = (
            Quarantined(tool=tool.tool, reason=reasons[tool.name]) for tool in catalogue.tools if tool.name in reasons
        )
        kept = tuple(tool for tool in catalogue.tools if tool.name not in reasons)
        changed = msgspec.structs.replace(catalogue, tools=kept, quarantined=(*catalogue.quarantined, *aside))
        return replace(view, catalogue=changed)
