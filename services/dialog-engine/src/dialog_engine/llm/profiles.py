"""How providers deviate from each other, as far as it is known before the first request. Pure.

Options that a provider refuses at run time are left out from then on (see `ChatClient`). A profile saves that first
refusal, and describes deviations that cause no error.
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from dialog_engine.errors import ConfigurationError


class Images(StrEnum):
    """Where a request has the images of tool results."""

    IN_RESULTS = "in results"
    AFTER_RESULTS = "in a user message after the results"
    REFERENCE = "not sent: the text of the result names them"


@dataclass(frozen=True, slots=True)
class Profile:
    """The request format of one provider.

    `empty_content` replaces the text of a message that has only calls. `nine_character_ids`: ids of calls are nine
    letters and digits. `reasoning_field` is the field in which reasoning goes back with calls, None for never;
    `reasoning_details` says whether reasoning that came in blocks goes back in blocks, `thought_signatures` whether
    `extra_content` goes back with a call. `images_of_users` says whether these are sent: that is tried, because users
    know which model they ask. `length_field` bounds the answer.
    """

    name: str
    empty_content: str | None = None
    nine_character_ids: bool = False
    reasoning_field: str | None = "reasoning_content"
    reasoning_details: bool = False
    thought_signatures: bool = True
    names_in_results: bool = True
    stream_usage: bool = True
    images: Images = Images.REFERENCE
    images_of_users: bool = True
    length_field: str = "max_tokens"


PROFILES = {
    profile.name: profile
    for profile in (
        Profile("generic"),
        Profile(
            "openai",
            reasoning_field=None,
            thought_signatures=False,
            names_in_results=False,
            images=Images.AFTER_RESULTS,
            length_field="max_completion_tokens",
        ),
        Profile("anthropic", images=Images.IN_RESULTS),
        Profile("gemini", reasoning_field=None, images=Images.AFTER_RESULTS),
        Profile("deepseek"),
        Profile("openrouter", reasoning_field="reasoning", reasoning_details=True, images=Images.AFTER_RESULTS),
        Profile("mistral", nine_character_ids=True, reasoning_field=None, stream_usage=False),
        Profile("groq", reasoning_field="reasoning"),
        # Their templates concatenate texts, and fail on null.
        Profile("ollama", empty_content=""),
        Profile("lmstudio", empty_content=""),
    )
}

_HOSTS = {
    "openai.com": "openai",
    "openai.azure.com": "openai",
    "cognitiveservices.azure.com": "openai",
    "anthropic.com": "anthropic",
    "generativelanguage.googleapis.com": "gemini",
    "aiplatform.googleapis.com": "gemini",
    "deepseek.com": "deepseek",
    "openrouter.ai": "openrouter",
    "mistral.ai": "mistral",
    "groq.com": "groq",
}
_PORTS = {11434: "ollama", 1234: "lmstudio"}
_MODELS = {"gemini": "gemini", "deepseek": "deepseek"}
"""Prefixes of model names, for gateways that forward requests unchanged."""


def profile_of(base_url: str, model: str, override: str | None = None) -> Profile:
    """The profile with the name `override`, or the one that the address and the model suggest.

    Raises:
        ConfigurationError: there is no profile with that name.
    """
    if override is not None:
        if override not in PROFILES:
            raise ConfigurationError(f"LLM_PROFILE must be one of {', '.join(PROFILES)}, not {override!r}")
        return PROFILES[override]
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    by_host = next((name for end, name in _HOSTS.items() if host == end or host.endswith(f".{end}")), None)
    family = model.rpartition("/")[2].lower()
    by_model = next((name for begin, name in _MODELS.items() if family.startswith(begin)), None)
    return PROFILES[by_host or _PORTS.get(parts.port or 0) or by_model or "generic"]
