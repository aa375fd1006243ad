"""How each protocol says the usage that an event of the log has. Pure."""

from collections.abc import Mapping
from typing import Any

Json = dict[str, Any]


def of_completion(used: Mapping[str, Any]) -> Json:
    """The usage of a chat completion."""
    asked, answered = used["inputTokens"], used["outputTokens"]
    cached, written, reasoning = _details(used)
    return {
        "prompt_tokens": asked,
        "completion_tokens": answered,
        "total_tokens": asked + answered,
        "prompt_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "completion_tokens_details": {"reasoning_tokens": reasoning},
    }


def of_response(used: Mapping[str, Any]) -> Json:
    """The usage of a response."""
    asked, answered = used["inputTokens"], used["outputTokens"]
    cached, written, reasoning = _details(used)
    return {
        "input_tokens": asked,
        "input_tokens_details": {"cached_tokens": cached, "cache_write_tokens": written},
        "output_tokens": answered,
        "output_tokens_details": {"reasoning_tokens": reasoning},
        "total_tokens": asked + answered,
    }


def of_ui_message(used: Mapping[str, Any], *, flat: bool) -> Json:
    """A `LanguageModelUsage` of the AI SDK. `flat`: as version 5 has it."""
    asked, answered = used["inputTokens"], used["outputTokens"]
    cached, written, reasoning = _details(used)
    known = {"inputTokens": asked, "outputTokens": answered, "totalTokens": asked + answered}
    known |= {"estimated": True} if used.get("estimated") else {}
    if flat:
        return known | {"reasoningTokens": reasoning, "cachedInputTokens": cached}
    of_input = {
        "noCacheTokens": asked - cached - written,
        "cacheReadTokens": cached,
        "cacheWriteTokens": written,
    }
    of_output = {"textTokens": answered - reasoning, "reasoningTokens": reasoning}
    return known | {"inputTokenDetails": of_input, "outputTokenDetails": of_output}


def _details(used: Mapping[str, Any]) -> tuple[int, int, int]:
    """What was read from a cache, what was written to one, and the reasoning: 0 where the log does not say it."""
    return used.get("cachedTokens", 0), used.get("cacheWriteTokens", 0), used.get("reasoningTokens", 0)
