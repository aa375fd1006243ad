"""How long a provider is waited for."""

import asyncio
from dataclasses import dataclass

from dialog_engine.errors import LLMError, LLMStreamBrokenError, LLMUnavailableError


@dataclass(frozen=True, slots=True)
class Waits:
    """The limits, in seconds.

    `connect` is for each attempt to connect. `first_token` is from the request to the first piece of the answer, with
    all retries: models that think are silent for long. `silence` is between two pieces after that. What a provider
    sends only to keep the connection open counts as silence.
    """

    connect: float = 10.0
    first_token: float = 300.0
    silence: float = 120.0


DEFAULT_WAITS = Waits()


class Patience:
    """With one answer: it begins when this is made."""

    def __init__(self, waits: Waits) -> None:
        self._waits = waits
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + waits.first_token
        self._heard = 0

    def heard(self, pieces: int) -> None:
        """So many pieces of the answer have come, all in all."""
        if pieces != self._heard:
            self._heard = pieces
            self._deadline = self._loop.time() + self._waits.silence

    def limit(self) -> asyncio.Timeout:
        """The limit that holds now, for one wait. It raises TimeoutError."""
        return asyncio.timeout_at(self._deadline)

    def at_an_end(self) -> LLMError:
        """What it means that a limit was reached."""
        if self._heard:
            return LLMStreamBrokenError(f"the model's stream fell silent for {self._waits.silence:g} seconds")
        return LLMUnavailableError(
            f"the model's provider did not answer in time: nothing came for {self._waits.first_token:g} seconds"
        )
