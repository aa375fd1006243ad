"""How a model samples its answers, as a request asks for it."""

from collections.abc import Mapping
from typing import Any

import msgspec

ANY_TOOL = "*"
"""As `must_call`: one that the model chooses."""


class Sampling(msgspec.Struct, frozen=True, omit_defaults=True):
    """How the model samples its answer; None and empty stand for the configured way. `max_tokens` bounds each reply of
    the model, `response_format` is in OpenAI's form. `must_call` is the tool that it has to call in the first round of
    the turn, by its name, or ANY_TOOL."""

    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    response_format: Mapping[str, Any] | None = None
    reasoning_effort: str | None = None
    must_call: str = ""
