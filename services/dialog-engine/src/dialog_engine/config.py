"""Settings of the engine, from the environment, `.env` and files of secrets. An invalid value stops the start."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr, ValidationError, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict, SettingsError

from callstream_runtime.settings import EncryptionSettings, RedisSettings, ServiceSettings, problems
from dialog_engine.errors import ConfigurationError
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED
from plugins_contract.messages import MAX_TIMEOUT_MS
from plugins_contract.signing import is_placeholder

SECRETS_DIRS = [path for path in (Path("/run/callstream"), Path("/run/secrets")) if path.is_dir()]
"""Folders with one file per setting: those that deploy/compose creates, and those of the operator, which win."""

SIGN_IN_CALLBACK = "/sign-in/callback"
"""The path below PUBLIC_URL to which the OpenID Connect provider sends browsers back."""

SHORTEST_KEY = 16
"""Characters of an API key: shorter ones can be guessed."""

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


def _url(url: str, *schemes: str) -> str:
    if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
        raise ValueError(f"must begin with {' or '.join(f'{scheme}://' for scheme in schemes)}")
    try:
        host, _ = urlsplit(url).hostname, urlsplit(url).port
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None
    if not host:
        raise ValueError("has no host")
    return url


def _postgres_url(url: SecretStr) -> SecretStr:
    """Check the scheme only: libpq checks the rest when it connects."""
    if not url.get_secret_value().startswith(("postgresql://", "postgres://")):
        raise ValueError("must begin with postgresql://, such as postgresql://user:password@host:5432/callstream")
    return url


def _proxies(text: str) -> str:
    if text not in ("", "*"):
        for each in text.split(","):
            ipaddress.ip_network(each.strip())  # its ValueError says what is wrong
    return text


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
DatabaseUrl = Annotated[SecretStr, AfterValidator(_postgres_url)]
ProxyAddresses = Annotated[str, AfterValidator(_proxies)]
HttpUrl = Annotated[str, AfterValidator(lambda url: _url(url, "http", "https"))]


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


class StoreSettings(EncryptionSettings, BaseSettings):
    """Which store is used: the part that the commands for operators need."""

    model_config = SettingsConfigDict(
        env_file=".env",
        env_ignore_empty=True,
        extra="ignore",
        secrets_dir=SECRETS_DIRS or None,
    )

    outbox_path: Path = Field(
        Path(".data/dialog-engine.sqlite3"),
        description="SQLite file of one engine, with sessions, turns and outbox. Not used with DATABASE_URL.",
    )
    database_url: DatabaseUrl | None = Field(
        None,
        description="PostgreSQL 15 or newer, shared by any number of engines: postgresql://user:password@host/db",
    )
    retention_days: int = Field(
        0, ge=0, le=36_500, description="Days for which a session is kept after its last message; 0: without end."
    )
    retention_by_subject: str = Field(
        "",
        description="The same for classes of subjects, the first that matches: pattern:days,pattern:days.",
    )

    prices_file: Path | None = Field(
        None, description="TOML file: the prices of models and tools, for the report of what was used."
    )

    @property
    def retention_rules(self) -> list[tuple[str, int]]:
        """Patterns of subjects, and for how many days the sessions of each are kept. The last one is for everybody."""
        rules = [(pattern, int(days)) for _, pattern, days in self._retention_parts()]
        return [*rules, ("*", self.retention_days)]

    def _retention_parts(self) -> list[tuple[str, str, str]]:
        parts = [each.strip() for each in self.retention_by_subject.split(",") if each.strip()]
        return [(each, pattern, days) for each in parts for pattern, _, days in [each.rpartition(":")]]

    @model_validator(mode="after")
    def _check_retention(self) -> Self:
        for each, pattern, days in self._retention_parts():
            if not pattern or not (days.isascii() and days.isdigit()) or int(days) > 36_500:
                raise ValueError(
                    f"RETENTION_BY_SUBJECT: {each!r} is not pattern:days, such as guest-*:7, with 0 to 36500 days"
                )
        return self


class OperatorSettings(RedisSettings, StoreSettings):
    """The store and Redis: what the commands for operators need that read both."""


class Settings(ServiceSettings, OperatorSettings):
    """All settings. Each field is named like its environment variable, in lower case."""

    host: str = Field("127.0.0.1", description="Address to listen on. Any other than loopback needs API_KEYS.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on.")
    api_keys: Annotated[dict[str, SecretStr], NoDecode] = Field(
        default_factory=dict,
        description="Keys of the API: name:key,name:key. Sessions belong to the name. Empty: loopback only.",
    )
    api_keys_file: Path | None = Field(
        None, description="File of hashed API keys with roles and expiry, as `dialog-engine keys` writes it."
    )
    failed_keys_per_minute: int = Field(
        10, ge=0, description="Requests with a wrong key or token from one address before more get 429; 0: no limit."
    )
    forwarded_allow_ips: ProxyAddresses = Field(
        "",
        description="Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed,"
        " separated by commas. Unset: nobody's.",
    )
    oidc_issuer: HttpUrl | None = Field(
        None, description="OpenID Connect provider whose tokens are accepted: its issuer, an https:// URL."
    )
    oidc_audience: str | None = Field(None, description="Audience of the access tokens that the API accepts.")
    oidc_client_id: str | None = Field(None, description="The page signs people in as this client of the provider.")
    oidc_client_secret: SecretStr | None = Field(None, description="The client's secret, if it has one.")
    oidc_scopes: str = Field("openid profile email", description="Scopes of the sign-in, separated by spaces.")
    oidc_roles_claim: str = Field("roles", description="Claim with the roles of a person; dots lead into objects.")
    oidc_operator_role: str = Field("operator", description="The value in that claim that makes an operator.")
    public_url: HttpUrl | None = Field(None, description="Address of the page in browsers, where sign-ins come back.")
    session_keys_file: Path | None = Field(
        None, description="File of keys that seal the page's sessions, one in each line. Unset: a new key per start."
    )
    session_seconds: int = Field(28_800, ge=60, description="How long a sign-in on the page lasts.")
    operations_host: str = Field("127.0.0.1", description="Addresses of OPERATIONS_PORT, separated by commas.")
    operations_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="A second port with /healthz, /readyz, /metrics and /openapi.json, without keys, for own networks.",
    )
    database_pool_size: int = Field(
        8, ge=1, le=100, description="Largest number of connections to PostgreSQL per engine."
    )
    outbox_routes: dict[str, str] = Field(
        default_factory=dict, description="JSON object of event types and streams, added to the built-in routes."
    )
    facts_with_text: bool = Field(
        False, description="Whether TurnFinished contains the texts of the turn. They then outlive a deleted session."
    )
    audit_retention_days: int = Field(
        400, ge=0, le=36_500, description="Days for which events of the audit are kept; 0: without end."
    )
    audit_stream: bool = Field(False, description="Publish each event of the audit to the stream events.audit.")

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
    max_message_chars: int = Field(100_000, ge=1, description="Largest number of characters of a user's message.")

    accept_unsigned_catalogs: bool = Field(
        False,
        description="With REQUEST_KEYS_FILE: also believe catalogs that are not signed, while older workers run.",
    )
    enable_mcp: bool = Field(True, description="Offer tools. When false, every tool call is answered with DISABLED.")
    tools_wait_seconds: float = Field(
        30, ge=0, description="How long a starting engine waits for MCP servers before it is ready."
    )
    mcp_request_timeout_ms: int = Field(
        30_000,
        ge=100,
        le=MAX_TIMEOUT_MS,
        description="Timeout of a tool call, unless the configuration of its server sets another.",
    )
    tool_mode: Literal["auto", "native", "tool_use", "function_calls"] = Field(
        "auto",
        description="How the model calls tools: native is function calling, tool_use and function_calls are tags in its"
        " text, auto is native until the provider rejects tools.",
    )
    allow_tool_mode: bool = Field(False, description="Whether a request may choose another TOOL_MODE.")
    tool_stop_sequence: bool = Field(
        True, description="With tags: stop the model after its first block of calls, so that it cannot invent results."
    )
    max_calls_per_reply: int = Field(64, ge=1, description="Tool calls of one reply of the model that are run.")
    max_calls_per_turn: int = Field(256, ge=1, description="Tool calls of one answer; then the model must answer.")
    max_own_calls_per_turn: int = Field(
        32, ge=1, description="Calls of the engine's own tools, such as tool_search, in one answer."
    )
    max_reply_bytes: int = Field(4_000_000, ge=1000, description="Bytes of one reply of the model that are kept.")
    subject_max_turns: int = Field(50, ge=0, description="Running turns of one subject of API_KEYS; 0: no limit.")
    subject_max_streams: int = Field(200, ge=0, description="Open event streams of one subject; 0: no limit.")
    subject_requests_per_minute: int = Field(1200, ge=0, description="Requests of one subject; 0: no limit.")
    subject_tokens_per_day: int = Field(
        0, ge=0, description="Tokens of the models that one subject may use in a day (UTC); 0: no limit."
    )
    mcp_max_tool_rounds: int = Field(
        5, ge=1, le=100, description="Largest number of rounds of tool calls before the last answer."
    )
    tool_exposure: Literal["direct", "gateway", "search", "auto"] = Field(
        "auto",
        description="How tools are offered: direct, each with its schema; gateway, one tool for all; search, the model"
        " searches for them; auto, direct if the schemas fit TOOL_BUDGET_TOKENS, otherwise search.",
    )
    tool_budget_tokens: int = Field(
        12_000, ge=500, description="Largest number of tokens for MCP tools in a request to the model."
    )
    result_max_chars: int = Field(
        16_000,
        ge=1_000,
        description="Characters of a tool result sent to the model, which can request the rest.",
    )
    approval_timeout_seconds: float = Field(
        3600, gt=0, description="How long a tool call waits for its approval before it is refused."
    )
    max_connections: int = Field(10_000, ge=1, description="Largest number of open connections to this engine.")
    max_connections_per_address: int = Field(
        1_000,
        ge=1,
        description="Largest number of open connections from one address, such as that of a proxy.",
    )
    max_backlog: int = Field(
        10_000, ge=0, description="Number of waiting tool calls above which new ones are refused; 0: never."
    )
    subject_window: int = Field(
        100,
        ge=0,
        description="Largest number of waiting calls of one subject in the stream. More are held back, so that other"
        " subjects do not wait behind them. 0: any number.",
    )

    shutdown_grace_seconds: float = Field(5, ge=0, description="How long running turns may continue after SIGTERM.")

    @model_validator(mode="before")
    @classmethod
    def _read_api_keys(cls, values: dict[str, object]) -> dict[str, object]:
        keys = values.get("api_keys")
        if not isinstance(keys, str):
            return values
        pairs = [pair.strip().partition(":") for pair in keys.split(",") if pair.strip()]
        if any(not name or not key for name, _, key in pairs):
            raise ValueError("API_KEYS must be name:key,name:key")
        for name, _, key in pairs:
            if len(key) < SHORTEST_KEY:
                raise ValueError(f"API_KEYS: the key of {name} is shorter than {SHORTEST_KEY} characters")
            if is_placeholder(key):
                raise ValueError(f"API_KEYS: the key of {name} is that of an example: use `openssl rand -hex 32`")
        if len({name for name, _, _ in pairs}) != len(pairs):
            raise ValueError("API_KEYS has the same name twice")
        if len({key for _, _, key in pairs}) != len(pairs):
            raise ValueError("API_KEYS has the same key for two names")
        return values | {"api_keys": {name: key for name, _, key in pairs}}

    @model_validator(mode="after")
    def _be_safe(self) -> Self:
        self._check_identity()
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
        if TOOL_CALL_REQUESTED in self.outbox_routes:
            raise ValueError(f"OUTBOX_ROUTES cannot move {TOOL_CALL_REQUESTED}: workers read events.plugins only")
        return self

    def _check_identity(self) -> None:
        if self.operations_port and not self.needs_sign_in:
            raise ValueError("OPERATIONS_PORT is for engines with API_KEYS, API_KEYS_FILE or OIDC_ISSUER: unset it")
        if self.operations_port == self.port:
            raise ValueError("OPERATIONS_PORT must be another port than PORT")
        if not self.needs_sign_in and not is_loopback(self.host):
            raise ValueError(
                f"HOST {self.host} can be reached from other machines: set API_KEYS, API_KEYS_FILE or OIDC_ISSUER, or"
                " HOST=127.0.0.1"
            )
        if self.oidc_issuer is None:
            for name in ("oidc_audience", "oidc_client_id"):
                if getattr(self, name):
                    raise ValueError(f"{name.upper()} is set: set OIDC_ISSUER too")
            return
        issuer = urlsplit(self.oidc_issuer)
        if issuer.scheme != "https" and not is_loopback(issuer.hostname or ""):
            raise ValueError("OIDC_ISSUER must begin with https://, unless it is on this machine")
        if not self.oidc_audience and not self.oidc_client_id:
            raise ValueError("OIDC_ISSUER is set: set OIDC_AUDIENCE for tokens of the API, OIDC_CLIENT_ID for the page")
        if self.oidc_client_id and not self.public_url:
            raise ValueError(
                "OIDC_CLIENT_ID is set: set PUBLIC_URL to the address of the page, such as https://chat.example"
            )
        public = urlsplit(self.public_url or "")
        if self.public_url and public.scheme != "https" and not is_loopback(public.hostname or ""):
            raise ValueError(
                "PUBLIC_URL must begin with https://, unless the page is on this machine: else sessions can be read on"
                " their way"
            )

    @property
    def needs_sign_in(self) -> bool:
        """Whether a request must prove who makes it."""
        return bool(self.api_keys or self.api_keys_file or self.oidc_issuer)

    @property
    def proxy_warning(self) -> str | None:
        """What is wrong with FORWARDED_ALLOW_IPS; None if nothing is known to be."""
        if self.forwarded_allow_ips == "*":
            return "FORWARDED_ALLOW_IPS is *: every client can claim any address; name the addresses of your proxies"
        proxied = not is_loopback(self.host) or (self.public_url or "").startswith("https://")
        if self.needs_sign_in and proxied and not self.forwarded_allow_ips:
            return (
                "FORWARDED_ALLOW_IPS is not set: behind a proxy all clients share its address, and the limit of failed"
                " attempts; set it to the addresses of the proxy"
            )
        return None

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
