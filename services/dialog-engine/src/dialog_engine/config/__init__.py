"""Settings of the engine, from the environment, `.env` and files of secrets. An invalid value stops the start."""

import re
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import NoDecode, SettingsError

from callstream_runtime.settings import ServiceSettings, problems
from dialog_engine.config.identity import IdentitySettings
from dialog_engine.config.limits import LimitSettings
from dialog_engine.config.store import EngineStoreSettings, OperatorSettings, StoreSettings
from dialog_engine.config.tools import ToolSettings
from dialog_engine.config.values import HttpUrl
from dialog_engine.errors import ConfigurationError

DEFAULT_PROMPT = (
    "You are a helpful assistant. Use the tools you are given when they help, say so when one failed, and never claim"
    " a result that no tool gave you."
)

PROVIDER_SETTINGS = {
    "azure": (
        "AZURE_OPENAI_ENDPOINT",
        "AZURE_OPENAI_API_KEY",
        "AZURE_OPENAI_API_VERSION",
        "AZURE_OPENAI_DEPLOYMENT",
    ),
    "bedrock": ("BEDROCK_MODEL", "AWS_REGION"),
    "vertex": ("VERTEX_MODEL", "ANTHROPIC_VERTEX_PROJECT_ID", "CLOUD_ML_REGION"),
}
"""The setting that selects a cloud provider, and those that it needs then."""


PROVIDERS = ("openai", "anthropic", "azure", "bedrock", "vertex")

_FIELD_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"


def _models(value: object) -> object:
    """Names of models, separated by commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip()) if isinstance(value, str) else value


def _model_name(name: str) -> str:
    provider, _, model = name.partition(":")
    if provider not in PROVIDERS or not model:
        raise ValueError(f"{name!r} is not provider:model, where provider is one of {', '.join(PROVIDERS)}")
    return name


def _headers(value: object) -> object:
    """`name: value`, one per line, as the official SDKs read it."""
    if not isinstance(value, str):
        return value
    fields = [line.partition(":") for line in value.splitlines() if line.strip()]
    if not all(colon and re.fullmatch(_FIELD_NAME, name.strip()) for name, colon, _ in fields):
        raise ValueError("must be name: value, one per line")
    return {name.strip(): text.strip() for name, _, text in fields}


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
Headers = Annotated[dict[str, SecretStr], NoDecode, BeforeValidator(_headers)]
ModelNames = Annotated[tuple[Annotated[str, AfterValidator(_model_name)], ...], NoDecode, BeforeValidator(_models)]


class Settings(  # pyright: ignore[reportIncompatibleVariableOverride]  # pydantic merges what bases say in model_config
    LimitSettings, ToolSettings, IdentitySettings, ServiceSettings, EngineStoreSettings
):
    """All settings. Each field is named like its environment variable, in lower case. Those of models are here."""

    openai_api_key: SecretStr | None = Field(None, description="API key of the model's provider.")
    openai_base_url: HttpUrl | None = Field(None, description="Base URL of an OpenAI-compatible server; unset: OpenAI.")
    openai_model: str = Field("gpt-4.1-mini", min_length=1, description="Name of the model.")
    openai_extra_body: dict[str, Any] = Field(
        default_factory=dict, description="JSON object that is merged into every request, such as a temperature."
    )
    openai_org_id: str | None = Field(None, description="Organization to bill, if the key has several.")
    openai_project_id: str | None = Field(None, description="Project to bill, if the key has several.")
    openai_custom_headers: Headers = Field(
        default_factory=dict,
        description="Header fields for every request, name: value, one per line. An empty value removes a default"
        " field.",
    )
    anthropic_api_key: SecretStr | None = Field(None, description="API key of Anthropic.")
    anthropic_base_url: HttpUrl | None = Field(None, description="Base URL of a server with Anthropic's Messages API.")
    anthropic_model: str = Field("claude-haiku-4-5", min_length=1, description="Name of the model.")
    anthropic_extra_body: dict[str, Any] = Field(
        default_factory=dict, description='Like OPENAI_EXTRA_BODY, such as {"thinking": {"type": "adaptive"}}.'
    )
    anthropic_custom_headers: Headers = Field(
        default_factory=dict, description="Like OPENAI_CUSTOM_HEADERS, such as anthropic-beta: context-1m-2025-08-07."
    )
    azure_openai_endpoint: HttpUrl | None = Field(
        None, description="Azure OpenAI: https://<resource>.openai.azure.com. OPENAI_CUSTOM_HEADERS count here too."
    )
    azure_openai_api_key: SecretStr | None = Field(None, description="Key for Azure OpenAI.")
    azure_openai_api_version: str | None = Field(None, description="Version of its API, such as 2024-10-21.")
    azure_openai_deployment: str | None = Field(None, description="The deployment that answers there.")
    bedrock_model: str | None = Field(
        None,
        description="Claude on Amazon Bedrock, by its model or inference profile id. Needs dialog-engine[bedrock].",
    )
    aws_region: str | None = Field(None, description="AWS region of Bedrock, such as us-east-1.")
    aws_bearer_token_bedrock: SecretStr | None = Field(None, description="An API key of Bedrock; wins over the others.")
    aws_access_key_id: str | None = Field(None, description="AWS credentials; unset: what the AWS SDK finds.")
    aws_secret_access_key: SecretStr | None = Field(None, description="The secret key that belongs to it.")
    aws_session_token: SecretStr | None = Field(None, description="The session token of temporary credentials.")
    aws_profile: str | None = Field(None, description="A profile of the AWS configuration files instead.")
    anthropic_bedrock_base_url: HttpUrl | None = Field(
        None, description="Another endpoint of Bedrock, such as a gateway."
    )
    vertex_model: str | None = Field(
        None, description="Claude on Google Cloud's Vertex AI, by its model id. Needs dialog-engine[vertex]."
    )
    anthropic_vertex_project_id: str | None = Field(None, description="Google Cloud project of Vertex AI.")
    cloud_ml_region: str | None = Field(None, description="Region of Vertex AI, such as us-east5 or global.")
    anthropic_vertex_base_url: HttpUrl | None = Field(
        None, description="Another endpoint of Vertex AI, such as a gateway."
    )
    llm_provider: Literal["openai", "anthropic", "azure", "bedrock", "vertex"] | None = Field(
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

    @model_validator(mode="after")
    def _have_a_model(self) -> Self:
        if not self._providers:
            raise ValueError(
                "OPENAI_API_KEY or OPENAI_BASE_URL, or ANTHROPIC_API_KEY or ANTHROPIC_BASE_URL, or one of"
                " AZURE_OPENAI_ENDPOINT, BEDROCK_MODEL and VERTEX_MODEL must be set, because an engine needs a model"
            )
        for provider in self._providers:
            selected, *needed = PROVIDER_SETTINGS.get(provider, ("",))
            missing = [name for name in needed if not getattr(self, name.lower())]
            if missing:
                raise ValueError(f"{selected} is set: set {' and '.join(missing)} too")
        for setting, names in (("LLM_FALLBACKS", self.llm_fallbacks), ("ALLOWED_MODELS", self.allowed_models)):
            for name in names:
                self._check_configured(setting, name.partition(":")[0])
        if unused := self.context_tokens.keys() - {"", *self.every_model}:
            names = f"{', '.join(sorted(unused))}, but the models are {', '.join(self.every_model)}"
            raise ValueError(f"CONTEXT_TOKENS names {names}")
        if self.llm_provider:
            self._check_configured("LLM_PROVIDER", self.llm_provider)
        return self

    @property
    def default_model(self) -> str:
        """The model that answers when a request chooses none, as `provider:model`."""
        provider = self.llm_provider or self._providers[0]
        models = {
            "openai": self.openai_model,
            "anthropic": self.anthropic_model,
            "azure": self.azure_openai_deployment,
            "bedrock": self.bedrock_model,
            "vertex": self.vertex_model,
        }
        return f"{provider}:{models[provider]}"

    @property
    def choosable_models(self) -> tuple[str, ...]:
        """The models that a request may choose, the default first."""
        return tuple(dict.fromkeys([self.default_model, *self.allowed_models]))

    @property
    def every_model(self) -> tuple[str, ...]:
        """Every model that may answer: those that a request may choose, and the fallbacks."""
        return tuple(dict.fromkeys([*self.choosable_models, *self.llm_fallbacks]))

    @property
    def _providers(self) -> tuple[str, ...]:
        configured = {
            "openai": self.openai_api_key or self.openai_base_url,
            "anthropic": self.anthropic_api_key or self.anthropic_base_url,
            "azure": self.azure_openai_endpoint,
            "bedrock": self.bedrock_model,
            "vertex": self.vertex_model,
        }
        return tuple(provider for provider in PROVIDERS if configured[provider])

    def _check_configured(self, setting: str, provider: str) -> None:
        if provider not in self._providers:
            own = f"{provider.upper()}_API_KEY or {provider.upper()}_BASE_URL"
            raise ValueError(f"{setting} names {provider}: set {PROVIDER_SETTINGS.get(provider, (own,))[0]}")


def load_settings() -> Settings:
    """Read the settings.

    Raises:
        ConfigurationError: the text names every invalid setting, and contains no value of a secret.
    """
    return _load(Settings)


def load_store_settings() -> StoreSettings:
    """Read the settings of the store only. Raises as `load_settings` does."""
    return _load(StoreSettings)


def load_operator_settings() -> OperatorSettings:
    """Read the settings of the store and of Redis. Raises as `load_settings` does."""
    return _load(OperatorSettings)


_S = TypeVar("_S", bound=StoreSettings)


def _load(kind: type[_S]) -> _S:
    try:
        return kind()  # pyright: ignore[reportCallIssue]  # its values come from the environment
    except ValidationError as error:
        raise ConfigurationError(problems(error)) from None
    except SettingsError as error:
        # The text names the field and the source; the cause may contain the value.
        raise ConfigurationError(_not_json(str(error))) from None


def _not_json(text: str) -> str:
    name = re.search(r'field "(\w+)"', text)
    return f"{name[1].upper()}: is not valid JSON" if name else text
