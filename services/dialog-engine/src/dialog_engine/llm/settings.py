"""Which models answer, at which providers, and how much of a conversation they are sent."""

from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator
from pydantic_settings import NoDecode

from callstream_runtime.settings_sources import Subject
from dialog_engine.llm.providers import PROVIDERS, Providers

DEFAULT_PROMPT = (
    "You are a helpful assistant. Use the tools you are given when they help, say so when one failed, and never claim"
    " a result that no tool gave you."
)


def _models(value: object) -> object:
    """Names of models, separated by commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _model_name(name: str) -> str:
    provider, _, model = name.partition(":")
    if provider not in PROVIDERS or not model:
        raise ValueError(f"{name!r} is not provider:model, where provider is one of {', '.join(PROVIDERS)}")
    return name


def _provider_name(name: str) -> str:
    if name not in PROVIDERS:
        raise ValueError(f"must be one of {', '.join(PROVIDERS)}")
    return name


def _context_tokens(value: object) -> object:
    """`provider:model=tokens`, separated by commas; a number without a model is under the name ""."""
    if not isinstance(value, str):
        return value
    entries = [entry.strip().rpartition("=") for entry in value.split(",") if entry.strip()]
    for model, equals, tokens in entries:
        if equals:
            _model_name(model.strip())
        if not tokens.strip().isdecimal():
            raise ValueError(f"{model}{equals}{tokens} is not a number of tokens, or provider:model=tokens")
    return {model.strip(): int(tokens) for model, _, tokens in entries}


ContextTokens = Annotated[dict[str, Annotated[int, Field(ge=1000)]], NoDecode, BeforeValidator(_context_tokens)]
ModelNames = Annotated[tuple[Annotated[str, AfterValidator(_model_name)], ...], NoDecode, BeforeValidator(_models)]


class ModelOptions(Subject):
    """What counts for every provider."""

    llm_provider: Annotated[str, AfterValidator(_provider_name)] | None = Field(
        None, description="The provider that answers; unset: the first configured one in this order."
    )
    llm_fallbacks: ModelNames = Field(
        default_factory=tuple,
        description="Models to use, in this order, while the first is unavailable: openai:model,anthropic:model.",
    )
    llm_cooldown_seconds: float = Field(30, ge=0, description="How long a model that was unavailable is tried last.")
    llm_max_tokens: int | None = Field(None, ge=1, description="Largest number of tokens of an answer.")
    llm_profile: str | None = Field(None, description="Provider profile; unset: chosen by the base URL.")
    allowed_models: ModelNames = Field(
        default_factory=tuple, description="Models that a request may choose: openai:model,anthropic:model."
    )
    model_label: str | None = Field(None, description="Name of the model on the chat page; unset: its real name.")
    model_scripted: bool = Field(False, description="Show on the chat page that the model is scripted, not an AI.")
    model_connect_timeout_seconds: float = Field(
        10, gt=0, description="Timeout of one attempt to connect to the provider."
    )
    model_first_token_seconds: float = Field(
        300, gt=0, description="Timeout of the first text, reasoning or tool call. Reasoning models need long."
    )
    model_timeout_seconds: float = Field(
        120, gt=0, description="Timeout of each further piece. Keep-alive messages do not count."
    )
    system_prompt: str = Field(DEFAULT_PROMPT, description="Instructions at the beginning of every conversation.")
    context_tokens: ContextTokens = Field(
        default_factory=dict,
        description="Tokens of a request and its answer, by estimate: provider:model=tokens,provider:model=tokens, or a"
        " number for all other models. Unset: what is known of the model, or 32000.",
    )
    history_max_messages: int = Field(
        1000, ge=1, description="Largest number of messages of a session sent to the model."
    )
    history_max_tokens: int | None = Field(
        None, ge=100, description="Largest number of tokens of a session sent to any model, to limit what it costs."
    )


class ModelSettings(BaseModel):
    """The models that may answer."""

    options: ModelOptions
    providers: Providers

    @model_validator(mode="after")
    def _have_a_model(self) -> Self:
        options, configured = self.options, self.providers.configured
        if not configured:
            ways = ", or ".join(self.providers.named(name).variables() for name in PROVIDERS)
            raise ValueError(f"{ways} must be set, because an engine needs a model")
        for setting, names in (
            ("LLM_FALLBACKS", options.llm_fallbacks),
            ("ALLOWED_MODELS", options.allowed_models),
            ("LLM_PROVIDER", (options.llm_provider or configured[0],)),
        ):
            for provider in (name.partition(":")[0] for name in names):
                if provider not in configured:
                    ways = self.providers.named(provider).variables()
                    raise ValueError(f"{setting} names {provider}: set {ways}")
        if unused := options.context_tokens.keys() - {"", *self.every_model}:
            names = f"{', '.join(sorted(unused))}, but the models are {', '.join(self.every_model)}"
            raise ValueError(f"CONTEXT_TOKENS names {names}")
        return self

    @property
    def default_model(self) -> str:
        """The model that answers when a request chooses none, as `provider:model`."""
        provider = self.options.llm_provider or self.providers.configured[0]
        return f"{provider}:{self.providers.named(provider).model}"

    @property
    def choosable_models(self) -> tuple[str, ...]:
        """The models that a request may choose, the default first."""
        return tuple(dict.fromkeys([self.default_model, *self.options.allowed_models]))

    @property
    def every_model(self) -> tuple[str, ...]:
        """Every model that may answer: those that a request may choose, and the fallbacks."""
        return tuple(dict.fromkeys([*self.choosable_models, *self.options.llm_fallbacks]))
