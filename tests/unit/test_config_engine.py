"""The engine's settings: each wrong value names itself, and none of a secret is shown."""

from pathlib import Path

import pytest

from dialog_engine.config.http import is_loopback
from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.context_tokens import context_tokens_of
from dialog_engine.llm.opening import rooms_of
from dialog_engine.settings import Settings, load_settings
from tests.marks import promise

pytestmark = pytest.mark.usefixtures("nothing_is_set")
MODEL = {"OPENAI_API_KEY": "hunter2"}
SIGN_IN = {"OIDC_ISSUER": "https://login.example", "OIDC_CLIENT_ID": "page"}


def load(monkeypatch: pytest.MonkeyPatch, **values: str) -> Settings:
    for name, value in (MODEL | values).items():
        monkeypatch.setenv(name, value)
    return load_settings()


def test_the_dot_env_file_is_read_and_the_environment_goes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / ".env").write_text("PORT=1234\nMAX_BACKLOG=7\nUNHEARD_OF=1\nMODEL_LABEL=\n")
    settings = load(monkeypatch, MAX_BACKLOG="8")
    assert (settings.http.port, settings.limits.max_backlog, settings.models.options.model_label) == (1234, 8, None)


def test_keys_are_read_as_names_and_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        monkeypatch, API_KEYS=" ann:a:key-of-sixteen-characters , bob:key-of-sixteen-characters,", HOST="0.0.0.0"
    )
    assert {name: key.get_secret_value() for name, key in settings.identity.api_keys.items()} == {
        "ann": "a:key-of-sixteen-characters",
        "bob": "key-of-sixteen-characters",
    }


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"PORT": "65536"}, "PORT"),
        ({"ENABLE_MCP": "maybe"}, "ENABLE_MCP"),
        ({"MCP_MAX_TOOL_ROUNDS": "0"}, "MCP_MAX_TOOL_ROUNDS"),
        ({"TOOL_MODE": "xml"}, "TOOL_MODE"),
        ({"MCP_REQUEST_TIMEOUT_MS": "1"}, "MCP_REQUEST_TIMEOUT_MS"),
        ({"LOG_LEVEL": "LOUD"}, "LOG_LEVEL"),
        ({"OPENAI_BASE_URL": "my-model"}, "OPENAI_BASE_URL: must begin with http://"),
        ({"OUTBOX_ROUTES": "{"}, "OUTBOX_ROUTES: is not valid JSON"),
        ({"OUTBOX_ROUTES": "[]"}, "OUTBOX_ROUTES"),
        ({"OUTBOX_ROUTES": '{"PluginToolCallRequested": "x"}'}, "OUTBOX_ROUTES cannot move"),
        ({"API_KEYS": "hunter2"}, "API_KEYS must be name:key"),
        ({"API_KEYS": ":hunter2"}, "API_KEYS must be name:key"),
        ({"API_KEYS": "ann:a-key-that-is-long,ann:another-key-that-is"}, "API_KEYS has the same name twice"),
        ({"API_KEYS": "ann:a-key-that-is-long,bob:a-key-that-is-long"}, "API_KEYS has the same key for two names"),
        ({"API_KEYS": "ann:fifteen-letters"}, "API_KEYS: the key of ann is shorter than 16 characters"),
        ({"API_KEYS": "ann:Change_Me-to-a-random-key"}, "API_KEYS: the key of ann is that of an example"),
        (SIGN_IN | {"PUBLIC_URL": "http://chat.example"}, "PUBLIC_URL must begin with https://"),
        ({"HOST": "0.0.0.0"}, "HOST 0.0.0.0 .* API_KEYS"),
        ({"OPERATIONS_PORT": "8001"}, "OPERATIONS_PORT is for engines with API_KEYS"),
        ({"API_KEYS": "ann:a-key-that-is-long", "OPERATIONS_PORT": "8000"}, "OPERATIONS_PORT must be another port"),
        ({"OIDC_ISSUER": "http://login.example", "OIDC_AUDIENCE": "api"}, "OIDC_ISSUER must begin with https://"),
        ({"OIDC_ISSUER": "https://login.example"}, "set OIDC_AUDIENCE for tokens of the API"),
        ({"OIDC_ISSUER": "https://login.example", "OIDC_CLIENT_ID": "page"}, "set PUBLIC_URL"),
        ({"OIDC_CLIENT_ID": "page"}, "OIDC_CLIENT_ID is set: set OIDC_ISSUER too"),
        ({"HOST": "::"}, "HOST :: .* API_KEYS"),
        ({"FORWARDED_ALLOW_IPS": "10.0.0.1,proxy"}, "FORWARDED_ALLOW_IPS"),
        ({"CORS_ORIGINS": "*"}, "CORS_ORIGINS.*one by one"),
        ({"CORS_ORIGINS": "https://a.example,https://*.example"}, "CORS_ORIGINS.*one by one"),
        ({"CORS_ORIGINS": "app.example"}, "CORS_ORIGINS.*must begin with http:// or https://"),
        ({"CORS_ORIGINS": "https://App.example:443/"}, "CORS_ORIGINS.*use https://app.example$"),
        ({"CORS_ORIGINS": "https://ann:hunter2@app.example/chat"}, "CORS_ORIGINS.*use https://app.example$"),
        ({"OPENAI_API_KEY": ""}, "OPENAI_API_KEY or OPENAI_BASE_URL"),
        ({"ANTHROPIC_BASE_URL": "my-model"}, "ANTHROPIC_BASE_URL: must begin with http://"),
        ({"LLM_PROVIDER": "other"}, "LLM_PROVIDER"),
        ({"LLM_PROVIDER": "anthropic"}, "LLM_PROVIDER names anthropic: set ANTHROPIC_API_KEY"),
        ({"LLM_FALLBACKS": "gpt-4.1"}, "LLM_FALLBACKS.*'gpt-4.1' is not provider:model, .* openai, anthropic, azure"),
        ({"LLM_FALLBACKS": "anthropic:claude"}, "LLM_FALLBACKS names anthropic: set ANTHROPIC_API_KEY"),
        ({"LLM_FALLBACKS": "bedrock:claude"}, "LLM_FALLBACKS names bedrock: set BEDROCK_MODEL"),
        ({"ALLOWED_MODELS": "openai:"}, "ALLOWED_MODELS"),
        ({"CONTEXT_TOKENS": "many"}, "CONTEXT_TOKENS.*: many is not a number of tokens, or provider:model=tokens"),
        ({"CONTEXT_TOKENS": "gpt=9000"}, "CONTEXT_TOKENS.*'gpt' is not provider:model"),
        ({"CONTEXT_TOKENS": "openai:gpt=9000"}, "CONTEXT_TOKENS names openai:gpt, but the models are openai:gpt-4.1"),
        ({"CONTEXT_TOKENS": "999"}, "CONTEXT_TOKENS.*greater than or equal to 1000"),
        ({"AZURE_OPENAI_ENDPOINT": "my-resource"}, "AZURE_OPENAI_ENDPOINT: must begin with http"),
        (
            {"AZURE_OPENAI_ENDPOINT": "https://r.openai.azure.com", "AZURE_OPENAI_API_KEY": "hunter2"},
            "AZURE_OPENAI_ENDPOINT is set: set AZURE_OPENAI_API_VERSION and AZURE_OPENAI_DEPLOYMENT too",
        ),
        ({"BEDROCK_MODEL": "anthropic.claude-v1:0"}, "BEDROCK_MODEL is set: set AWS_REGION too"),
        ({"VERTEX_MODEL": "claude"}, "VERTEX_MODEL is set: set ANTHROPIC_VERTEX_PROJECT_ID and CLOUD_ML_REGION too"),
        ({"OPENAI_EXTRA_BODY": "{"}, "OPENAI_EXTRA_BODY: is not valid JSON"),
        ({"OPENAI_CUSTOM_HEADERS": "hunter2"}, "OPENAI_CUSTOM_HEADERS: must be name: value"),
        ({"ANTHROPIC_CUSTOM_HEADERS": "a: b\nmy key: hunter2"}, "ANTHROPIC_CUSTOM_HEADERS: must be name: value"),
    ],
)
def test_a_wrong_value_names_its_setting_and_shows_no_secret(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], words: str
) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        load(monkeypatch, **values)
    assert "hunter2" not in str(caught.value)


@promise("header fields, organisation and project of the environment arrive as from the official SDKs, and are secrets")
def test_header_fields_are_read_line_by_line_and_are_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, OPENAI_CUSTOM_HEADERS="api-key: a:b \n\nAuthorization:\n")
    fields = settings.models.providers.openai.openai_custom_headers
    assert {name: value.get_secret_value() for name, value in fields.items()} == {"api-key": "a:b", "Authorization": ""}
    assert "a:b" not in repr(settings)


def test_origins_are_read_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(monkeypatch, CORS_ORIGINS=" https://app.example , http://[::1]:3000,")
    assert settings.http.cors_origins == ("https://app.example", "http://[::1]:3000")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1.2.3", "::1"])
def test_loopback_is_reachable_from_this_machine_only(host: str) -> None:
    assert is_loopback(host)


def test_the_configured_provider_answers_and_openai_if_both_are(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load(monkeypatch).models.default_model == "openai:gpt-4.1-mini"
    assert (
        load(monkeypatch, ANTHROPIC_API_KEY="k", ANTHROPIC_MODEL="claude").models.default_model == "openai:gpt-4.1-mini"
    )
    assert load(monkeypatch, LLM_PROVIDER="anthropic").models.default_model == "anthropic:claude"
    monkeypatch.delenv("LLM_PROVIDER")
    assert load(monkeypatch, OPENAI_API_KEY="").models.default_model == "anthropic:claude"


def test_the_models_that_may_answer_are_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        monkeypatch,
        ANTHROPIC_API_KEY="k",
        ALLOWED_MODELS="anthropic:claude, openai:gpt-4.1-mini",
        LLM_FALLBACKS="openai:x:free,anthropic:claude",
    )
    assert settings.models.choosable_models == ("openai:gpt-4.1-mini", "anthropic:claude")
    assert settings.models.every_model == ("openai:gpt-4.1-mini", "anthropic:claude", "openai:x:free")


@pytest.mark.parametrize(
    ("configured", "rooms"),
    [
        ("", {"openai:gpt-4.1-mini": 200_000, "openai:qwen3:8b": 32_000, "anthropic:claude-haiku-4-5": 200_000}),
        ("9000", {"openai:gpt-4.1-mini": 9_000, "openai:qwen3:8b": 9_000, "anthropic:claude-haiku-4-5": 9_000}),
        (
            "openai:qwen3:8b=8192, 16000",
            {"openai:gpt-4.1-mini": 16_000, "openai:qwen3:8b": 8_192, "anthropic:claude-haiku-4-5": 16_000},
        ),
    ],
)
def test_each_model_has_its_context_less_what_the_answer_needs(
    monkeypatch: pytest.MonkeyPatch, configured: str, rooms: dict[str, int]
) -> None:
    models = {"ANTHROPIC_API_KEY": "k", "LLM_FALLBACKS": "openai:qwen3:8b,anthropic:claude-haiku-4-5"}
    expected = {name: tokens - min(16_384, tokens // 4) for name, tokens in rooms.items()}
    assert rooms_of(load(monkeypatch, CONTEXT_TOKENS=configured, **models).models) == expected
    short = load(monkeypatch, CONTEXT_TOKENS=configured, LLM_MAX_TOKENS="500", **models)
    assert rooms_of(short.models) == {name: tokens - 500 for name, tokens in rooms.items()}


@pytest.mark.parametrize(
    ("name", "tokens"),
    [
        ("azure:gpt-4o", 128_000),
        ("openai:gpt-5-mini", 200_000),
        ("openai:gpt-4-0613", 8_000),
        ("openai:gpt-3.5-turbo", 16_000),
        ("openai:openai/gpt-oss-20b", 32_000),
        ("openai:google/gemini-2.5-flash", 200_000),
        ("openai:mistral-large-latest", 128_000),
        ("openai:mistral:7b", 32_000),
        ("bedrock:eu.anthropic.claude-sonnet-4-5-20250929-v1:0", 200_000),
        ("openai:demo-scripted", 32_000),
    ],
)
def test_known_families_have_their_context_and_servers_of_ones_own_the_small_one(name: str, tokens: int) -> None:
    assert context_tokens_of(name) == tokens


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"HOST": "0.0.0.0"}, "is not set"),
        ({"PUBLIC_URL": "https://chat.example"}, "is not set"),
        ({"HOST": "0.0.0.0", "FORWARDED_ALLOW_IPS": "*"}, "every client can claim any address"),
        ({"HOST": "0.0.0.0", "FORWARDED_ALLOW_IPS": "10.0.0.1, 192.168.0.0/16"}, None),
        ({}, None),
    ],
)
def test_a_proxy_that_is_not_named_is_warned_about(
    monkeypatch: pytest.MonkeyPatch, values: dict[str, str], words: str | None
) -> None:
    warning = load(monkeypatch, API_KEYS="ann:a-key-of-sixteen-characters", **values).proxy_warning
    assert warning is None if words is None else words in str(warning)
