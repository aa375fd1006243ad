"""How a model is offered tools, and calls them."""

import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Literal, get_args

from dialog_engine.errors import LLMToolsRejectedError
from dialog_engine.model import ChatEvent, ChatRequest
from dialog_engine.tool_calls.dialects.function_calls import FUNCTION_CALLS
from dialog_engine.tool_calls.dialects.tool_use import TOOL_USE
from dialog_engine.tool_calls.ports import StreamChat
from dialog_engine.tool_calls.prompt_mode import in_prompt_mode

log = logging.getLogger(__name__)

ToolMode = Literal["auto", "native", "tool_use", "function_calls"]
TOOL_MODES: tuple[ToolMode, ...] = get_args(ToolMode)


def in_tool_mode(llm: StreamChat, mode: ToolMode, *, stop: bool, model: str) -> StreamChat:
    """`llm` with tools offered in that mode. `model` is what logs call it; for `stop` see `in_prompt_mode`."""
    match mode:
        case "native":
            return llm
        case "tool_use":
            return in_prompt_mode(llm, TOOL_USE, stop=stop)
        case "function_calls":
            return in_prompt_mode(llm, FUNCTION_CALLS, stop=stop)
        case "auto":
            return native_if_possible(llm, in_prompt_mode(llm, TOOL_USE, stop=stop), model)


def in_tool_modes(llm: StreamChat, usual: ToolMode, *, stop: bool, model: str) -> StreamChat:
    """`llm` with tools offered in the mode that the turn asks for, or else in the `usual` one.

    One that this release does not know, from an engine of another, counts as not asked for.
    """
    modes = {mode: in_tool_mode(llm, mode, stop=stop, model=model) for mode in TOOL_MODES}

    def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        return modes.get(request.turn.choice.tool_mode, modes[usual])(request)

    return stream_chat


def native_if_possible(native: StreamChat, prompted: StreamChat, model: str) -> StreamChat:
    """`native`, until it rejects tools; from then on `prompted`, for the request that was rejected too.

    It costs nothing where function calling works. What it has learned of a model lasts as long as the wrapped client.
    """
    rejected = False

    async def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        nonlocal rejected
        refusal: LLMToolsRejectedError | None = None
        if not rejected:
            silent = True
            try:
                async with aclosing(native(request)) as events:
                    async for event in events:
                        silent = False
                        yield event
                return
            except LLMToolsRejectedError as error:
                if not request.tools or not silent:
                    raise
                refusal = error
        async with aclosing(prompted(request)) as events:
            async for event in events:
                if not rejected:
                    # Only now is it certain that the tools were what it was about.
                    log.warning("%s takes no tools, from now on they are described in its prompt: %s", model, refusal)
                    rejected = True
                yield event

    return stream_chat
