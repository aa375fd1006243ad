"""Which model answers: the one that was chosen, or, while it cannot, the next one that was configured for that.

Another model is asked only as long as nothing of an answer has been told: what a user has read is never taken back.
"""

import logging
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing

from dialog_engine.errors import LLMError, LLMQuotaError, LLMRateLimitedError, LLMUnavailableError
from dialog_engine.model import AnsweredBy, ChatEvent, ChatRequest
from dialog_engine.tool_calls.ports import StreamChat

log = logging.getLogger(__name__)

MAX_REST_SECONDS = 300.0
"""A model is tried again after so long at most, whatever its provider advises."""


def in_order(chosen: str, fallbacks: Sequence[str], resting: Callable[[str], bool]) -> list[str]:
    """The models to ask, first to last: as configured, but those that rest come after those that do not."""
    models = list(dict.fromkeys([chosen, *fallbacks]))
    return sorted(models, key=resting)


class Router:
    """Several models as one. `models` are by name, `default` and `fallbacks` are among them.

    A model that could not answer rests for `rest_seconds`, or as long as its provider advises: meanwhile the others are
    asked first, so that not every turn pays for its failure.
    """

    def __init__(
        self,
        models: Mapping[str, StreamChat],
        default: str,
        fallbacks: Sequence[str] = (),
        *,
        rest_seconds: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._models = models
        self._default = default
        self._fallbacks = fallbacks
        self._rest_seconds = rest_seconds
        self._now = now
        self._rests_until: dict[str, float] = {}

    async def stream_chat(self, request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        """The stream of the first model that begins to answer; before its first event, AnsweredBy.

        Raises:
            LLMError: the last of them could not either, or one failed in a way that another model would not help.
        """
        order = in_order(self._chosen(request), self._fallbacks, self._rests)
        for name in order:
            begun = False
            try:
                async with aclosing(self._models[name](request)) as events:
                    async for event in events:
                        if not begun:
                            begun = True
                            yield AnsweredBy(name)
                        yield event
                return
            except (LLMUnavailableError, LLMRateLimitedError, LLMQuotaError) as error:
                if begun:
                    raise
                self._let_rest(name, error)
                if name == order[-1]:
                    raise
                log.warning("%s cannot answer, the next model is asked: %s", name, error)

    def _chosen(self, request: ChatRequest) -> str:
        chosen = request.turn.choice.model or self._default
        if chosen in self._models:
            return chosen
        log.warning("%s, chosen for turn %s, is not configured here", chosen, request.turn.turn_id)
        return self._default

    def _rests(self, name: str) -> bool:
        return self._rests_until.get(name, float("-inf")) > self._now()

    def _let_rest(self, name: str, error: LLMError) -> None:
        advised = error.retry_after if isinstance(error, LLMRateLimitedError) else None
        seconds = max(self._rest_seconds, advised or 0.0) if self._rest_seconds else 0.0
        self._rests_until[name] = self._now() + min(seconds, MAX_REST_SECONDS)
