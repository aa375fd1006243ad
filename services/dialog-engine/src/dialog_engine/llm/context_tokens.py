"""How many tokens a model accepts, where CONTEXT_TOKENS does not say it. Pure."""

import re

UNKNOWN = 32_000
"""For models that are not in the table. A server on one's own machine may accept fewer, whatever its model could."""

ANSWER = 16_384
"""Tokens that are kept free for the answer where LLM_MAX_TOKENS does not say how many it may have."""

_FAMILIES = (
    # None has more than 200,000, though several accept a million: long requests are slow, and cost by length.
    (re.compile(r"claude|gemini-\d|gpt-4\.1|gpt-5(?!-chat)|\bo[134](-|$)"), 200_000),
    (re.compile(r"gpt-4o|gpt-4-turbo|gpt-5-chat|deepseek-(chat|reasoner)$|mistral-\w+-(latest|\d{4})"), 128_000),
    (re.compile(r"gpt-3\.5-turbo"), 16_000),
    (re.compile(r"\bgpt-4(-\d{4})?$"), 8_000),
)
"""By the names under which their makers and the clouds offer them: the providers' tables of models, November 2026."""


def context_tokens_of(name: str) -> int:
    """The context of the model `provider:model`."""
    return next((tokens for family, tokens in _FAMILIES if family.search(name.lower())), UNKNOWN)


def room_of(context_tokens: int, answer_tokens: int | None) -> int:
    """What requests may have of a context: without the tokens of the answer, which get a quarter of it at most."""
    return context_tokens - min(answer_tokens or ANSWER, context_tokens // 4)
