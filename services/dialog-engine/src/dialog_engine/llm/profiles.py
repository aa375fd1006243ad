"""In what the providers differ, as far as it is known before they are asked. Pure.

What a provider turns out to refuse at run time is left out from then on (see the clients); a profile saves the first
complaint, and says what no complaint would tell.
"""

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit

from dialog_engine.errors import ConfigurationError


class Images(StrEnum):
    """How a model is shown the images of tool results."""

    IN_RESULTS = "in results"
    AFTER_RESULTS = "in a user's message after the results"
    REFERENCE = "not at all: the result's text names them"


@dataclass(frozen=True, slots=True)
class Profile:
    """How one provider wants to be spoken to.

    `empty_content` is what stands for the text of a message that has calls only; `nine_character_ids` makes ids of
    calls nine letters and digits. `reasoning_field` is the name under which reasoning goes back with calls, None for
    never; `reasoning_details` says whether it goes back as blocks where it came so, `thought_signatures` whether
    `extra_content` goes back with a call. `length_field` bounds the answer.
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
        # Their templates join texts, and fail on null.
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
"""Beginnings of the names of models, for gateways that pass on what they are sent."""


def profile_of(base_url: str, model: str, override: str | None = None) -> Profile:
    """The profile of what answers there: the one that `override` names, or what the address and the model suggest.

    Raises:
        ConfigurationError: there is no profile of that name.
    """
    if override is not None:
        if override not in PROFILES:
            raise ConfigurationError(f"LLM_PROFILE {override!r} is none of {', '.join(PROFILES)}")
        return PROFILES[override]
    parts = urlsplit(base_url)
    host = parts.hostname or ""
    by_host = next((name for end, name in _HOSTS.items() if host == end or host.endswith(f".{end}")), None)
    family = model.rpartition("/")[2].lower()
    by_model = next((name for begin, name in _MODELS.items() if family.startswith(begin)), None)
    return PROFILES[by_host or _PORTS.get(parts.port or 0) or by_model or "generic"]
