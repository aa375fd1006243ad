"""Sends results that are too large for Redis to an engine, where one can be reached."""

import asyncio
import logging

from plugins_contract.encryption import Cipher
from plugins_contract.large_results import LARGE_BYTES, PATH, in_place_of, to_send
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import MediaBlock, TextBlock, ToolOutcome
from plugins_contract.signing import RequestKeys
from plugins_mcp.ports import ResultSender

log = logging.getLogger(__name__)

TIMEOUT_SECONDS = 10.0
ATTEMPTS = 3
"""How often an engine is tried: a name may stand for several, of which one is away."""
AGAIN_SECONDS = 0.5


class LargeResults(ResultSender):
    """The engines at the operations port of `url`, whose store keeps results."""

    def __init__(
        self, url: str, keys: RequestKeys, cipher: Cipher, *, timeout_seconds: float = TIMEOUT_SECONDS
    ) -> None:
        self._url = url.rstrip("/")
        self._keys = keys
        self._cipher = cipher
        self._timeout_seconds = timeout_seconds

    async def sent(self, request: ToolCallRequested, fence: int, outcome: ToolOutcome) -> ToolOutcome:
        if not request.keeps_large or not _may_be_large(outcome):
            return outcome
        result = await asyncio.to_thread(to_send, request, fence, outcome, self._cipher)
        if result is None:
            return outcome
        try:
            async with asyncio.timeout(self._timeout_seconds):
                why = await self._put(result.correlation_id, result.body, result.fields(self._keys))
        except TimeoutError:
            why = f"no answer within {self._timeout_seconds:g} seconds"
        if not why:
            return in_place_of(outcome, result.digest)
        size = len(result.body)
        log.warning("the result of call %s (%d bytes) goes through Redis: %s", request.correlation_id, size, why)
        return outcome

    async def _put(self, correlation_id: str, body: bytes, fields: dict[str, str]) -> str:
        """Why it was not taken; '' if it was."""
        import aiohttp  # noqa: PLC0415 -- slow to import, and few results are large

        why = ""
        for attempt in range(ATTEMPTS):
            if attempt:
                await asyncio.sleep(AGAIN_SECONDS)
            try:
                async with (
                    aiohttp.ClientSession() as http,
                    http.put(
                        f"{self._url}{PATH}{correlation_id}", data=body, headers=fields, allow_redirects=False
                    ) as answer,
                ):
                    if answer.status < 500:
                        return "" if answer.status == 204 else f"the engine has answered {answer.status}"
                    why = f"the engine has answered {answer.status}"
            except (aiohttp.ClientError, OSError) as error:
                why = f"no engine can be reached at ENGINE_URL: {type(error).__name__}"
        return why


def _may_be_large(outcome: ToolOutcome) -> bool:
    """Whether it may exceed LARGE_BYTES: a character has six bytes of JSON at most."""
    texts = sum(len(block.text) for block in outcome.content if isinstance(block, TextBlock))
    media = sum(len(block.data) for block in outcome.content if isinstance(block, MediaBlock))
    return 6 * texts + media > LARGE_BYTES // 2
