"""What is decided until a model begins to answer: which one does, and how it is offered tools.

While the requested model is unavailable, the next of the configured fallbacks is asked. A model gets tools by function
calling of its provider, or as tags in the text. What its provider refuses is left out: function calling, or one tool.

All of this happens before the first event of an answer: text that a user has seen is never taken back.
"""

import logging
import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, get_args

from callstream_runtime.long_texts import reading
from dialog_engine.context import characters_of, fit, tokens_of_request
from dialog_engine.errors import (
    LLMContextLengthError,
    LLMError,
    LLMQuotaError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMToolsRejectedError,
    LLMUnavailableError,
)
from dialog_engine.model import AnsweredBy, ChatRequest
from dialog_engine.sideband import ModelStream
from dialog_engine.tool_calls.exposure.quarantine import Quarantine
from dialog_engine.tool_calls.ports import OpenChat
from dialog_engine.tool_calls.prompt_mode.function_calls import FUNCTION_CALLS
from dialog_engine.tool_calls.prompt_mode.modes import in_prompt_mode
from dialog_engine.tool_calls.prompt_mode.tool_use import TOOL_USE

log = logging.getLogger(__name__)

MAX_COOLDOWN_SECONDS = 300.0
"""The longest cooldown of a model, whatever its provider's `retry-after` says."""
ToolMode = Literal["auto", "native", "tool_use", "function_calls"]
TOOL_MODES: tuple[ToolMode, ...] = get_args(ToolMode)


def in_order(chosen: str, fallbacks: Sequence[str], cooling_down: Callable[[str], bool]) -> list[str]:
    """The models in the order in which they are asked: as configured, but those that cool down come last."""
    models = list(dict.fromkeys([chosen, *fallbacks]))
    return sorted(models, key=cooling_down)


class Router:
    """Several models behind one interface. `models` are by name; `default` and `fallbacks` are among them.

    Each is sent as much of a conversation as `rooms` says, in tokens by name; without an entry it is sent all of it.
    When its provider finds that too long, it is asked again with half as much, as long as there is something to leave
    out: the numbers are estimates, and a server may accept less than its model.

    A model that was unavailable cools down for `cooldown_seconds`, or as long as its provider's `retry-after` says.
    Meanwhile the others are asked first, so that not every turn waits for its failure.
    """

    def __init__(
        self,
        models: Mapping[str, OpenChat],
        default: str,
        fallbacks: Sequence[str] = (),
        *,
        cooldown_seconds: float,
        rooms: Mapping[str, int] | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._default = default
        self._fallbacks = fallbacks
        self._cooldown_seconds = cooldown_seconds
        self._rooms = rooms or {}
        self._now = now
        self._cooldown_until: dict[str, float] = {}

    async def open(self, request: ChatRequest) -> ModelStream:
        """The stream of the first model that begins to answer; it begins with AnsweredBy.

        Raises:
            LLMError: the last model was unavailable too, or one failed in a way that another model would not avoid.
        """
        order = in_order(self._requested(request), self._fallbacks, self._cools_down)
        attempts = deque((name, float(self._rooms.get(name, math.inf))) for name in order)
        while True:
            name, room = attempts.popleft()
            size = characters_of(request.messages)
            sent = await reading(size, fit, request, room)
            request.meter.room = room
            try:
                stream = await self._models[name](sent)
            except LLMContextLengthError as error:
                half = await reading(size, tokens_of_request, sent) / 2
                if (await reading(size, fit, request, half)).left_out == sent.left_out:
                    raise
                log.warning("%s is asked again with less of the conversation: %s", name, error)
                attempts.appendleft((name, half))
            except (LLMUnavailableError, LLMRateLimitedError, LLMQuotaError) as error:
                self._start_cooldown(name, error)
                if not attempts:
                    raise
                log.warning("%s is unavailable, its fallback is asked: %s", name, error)
            else:
                stream.put_first(AnsweredBy(name, sent.left_out))
                return stream

    def _requested(self, request: ChatRequest) -> str:
        requested = request.turn.choice.model or self._default
        if requested in self._models:
            return requested
        log.warning(
            "turn %s requests %s, which is not configured here: %s answers",
            request.turn.turn_id,
            requested,
            self._default,
        )
        return self._default

    def _cools_down(self, name: str) -> bool:
        return self._cooldown_until.get(name, float("-inf")) > self._now()

    def _start_cooldown(self, name: str, error: LLMError) -> None:
        retry_after = error.retry_after if isinstance(error, LLMRateLimitedError) else None
        seconds = max(self._cooldown_seconds, retry_after or 0.0) if self._cooldown_seconds else 0.0
        self._cooldown_until[name] = self._now() + min(seconds, MAX_COOLDOWN_SECONDS)


# --- How one model gets its tools ---


def in_tool_mode(llm: OpenChat, mode: ToolMode, *, stop: bool, model: str) -> OpenChat:
    """`llm` with tools offered in that mode. `model` is its name in logs; for `stop` see `in_prompt_mode`."""
    match mode:
        case "native":
            return llm
        case "tool_use":
            return in_prompt_mode(llm, TOOL_USE, stop=stop)
        case "function_calls":
            return in_prompt_mode(llm, FUNCTION_CALLS, stop=stop)
        case "auto":
            return native_if_possible(llm, in_prompt_mode(llm, TOOL_USE, stop=stop), model)


def in_tool_modes(llm: OpenChat, usual: ToolMode, *, stop: bool, model: str) -> OpenChat:
    """`llm` with tools offered in the mode of the turn, or in the `usual` one if the turn has none.

    A mode that this release does not know, because an engine of another release stored it, counts as none.
    """
    modes = {mode: in_tool_mode(llm, mode, stop=stop, model=model) for mode in TOOL_MODES}

    async def open_chat(request: ChatRequest) -> ModelStream:
        return await modes.get(request.turn.choice.tool_mode, modes[usual])(request)

    return open_chat


def native_if_possible(native: OpenChat, prompted: OpenChat, model: str) -> OpenChat:
    """`native` until it rejects tools; from then on `prompted`, beginning with the request that was rejected.

    It costs no request while function calling works. The change lasts as long as the returned client.
    """
    rejected = False

    async def open_chat(request: ChatRequest) -> ModelStream:
        nonlocal rejected
        if rejected:
            return await prompted(request)
        try:
            return await native(request)
        except LLMToolsRejectedError as error:
            if not request.tools:
                raise
            refusal = error
        stream = await prompted(request)
        if not rejected:
            # The reply shows that the tools were the reason.
            text = "model %s rejects tools; from now on they are described in its system message: %s"
            log.warning(text, model, refusal)
            rejected = True
        return stream

    return open_chat


def guarded(llm: OpenChat, model: str, quarantine: Quarantine) -> OpenChat:
    """`llm`, which has the name `model`, such that a request is repeated without a tool that the provider refuses.

    It is repeated only while the reply has not begun.
    """
    refused = quarantine.refused_by(model)

    async def open_chat(request: ChatRequest) -> ModelStream:
        if refused:
            request = quarantine.without_refused(request, model)
        try:
            return await llm(request)
        except LLMRequestError as error:
            return await quarantine.ask_again(llm, model, request, error)

    return open_chat
