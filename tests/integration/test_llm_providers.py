"""Providers by their settings: what is sent to each of them, and how the answers of Amazon Bedrock are read."""

import asyncio
import json
import os
import struct
import sys
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from zlib import crc32

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from dialog_engine.errors import (
    ConfigurationError,
    LLMAuthenticationError,
    LLMError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMStreamBrokenError,
)
from dialog_engine.llm.bedrock import EventStreamParser
from dialog_engine.llm.opening import open_llm
from dialog_engine.model import AnsweredBy, ChatEvent, ChatRequest, Choice, StreamEnd, TextDelta
from dialog_engine.settings import load_settings
from tests.marks import promise
from tests.support.hello import REQUEST, TURN
from tests.support.protocols import PROTOCOLS
from tests.support.scripted_provider import Provider, Script, answer, refusal, serving

SECRET = "hunter2hunter2"
PREFIXES = (
    "OPENAI_",
    "OPENROUTER_",
    "ANTHROPIC_",
    "AZURE_",
    "AWS_",
    "BEDROCK_",
    "VERTEX_",
    "CLOUD_ML_",
    "GOOGLE_",
    "LLM_",
)


@pytest.fixture(autouse=True)
def no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.startswith(PREFIXES) or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    # Neither SDK looks for the metadata service of a cloud's machine.
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("NO_GCE_CHECK", "true")


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(), path="") as provider:
        yield provider


async def ask(monkeypatch: pytest.MonkeyPatch, **settings: str) -> list[ChatEvent]:
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    async with open_llm(load_settings().models) as llm:
        return [event async for event in await llm(REQUEST)]


def said(events: list[ChatEvent]) -> tuple[str, str]:
    by, *deltas, end = events
    assert isinstance(by, AnsweredBy)
    assert isinstance(end, StreamEnd)
    return by.model, "".join(event.text for event in deltas if isinstance(event, TextDelta))


# --- OpenAI and Anthropic --------------------------------------------------------------------------------------------


@promise("OpenAI, Anthropic, Azure OpenAI, Amazon Bedrock and Vertex AI answer by settings")
@promise("header fields, organisation and project of the environment arrive as from the official SDKs, and are secrets")
@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_account_and_header_fields_of_the_environment_are_sent(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    provider.scripts = [answer(PROTOCOLS[kind].hello)]
    names = {"API_KEY": SECRET, "MODEL": "m", "BASE_URL": provider.url, "ORG_ID": "org-1", "PROJECT_ID": "proj-1"}
    settings = {f"{kind.upper()}_{name}": value for name, value in names.items()}
    settings[f"{kind.upper()}_CUSTOM_HEADERS"] = "x-gateway: a:b\nUser-Agent: mine\nx-api-key:"
    assert said(await ask(monkeypatch, **settings)) == (f"{kind}:m", "Hello")
    fields = provider.asked[0].fields
    assert (fields["authorization"], fields["x-gateway"], fields["user-agent"]) == (f"Bearer {SECRET}", "a:b", "mine")
    assert "x-api-key" not in fields
    account = (fields.get("openai-organization"), fields.get("openai-project"))
    assert account == (("org-1", "proj-1") if kind == "openai" else (None, None))


async def test_the_models_of_one_provider_share_its_connections(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.scripts = [answer(PROTOCOLS["openai"].hello)]
    monkeypatch.setenv("OPENAI_BASE_URL", provider.url)
    monkeypatch.setenv("ALLOWED_MODELS", "openai:another")
    async with open_llm(load_settings().models) as llm:
        for model in ("", "openai:another"):
            turn = replace(TURN, choice=Choice(model=model))
            assert [event async for event in await llm(ChatRequest(REQUEST.messages, turn))]
    assert [body["model"] for body in provider.requests] == ["gpt-4.1-mini", "another"]
    assert provider.connections == 1


# --- OpenRouter ------------------------------------------------------------------------------------------------------


async def test_openrouter_answers_beside_openai_with_its_own_key_and_no_header_field_of_the_other(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.scripts = [answer(PROTOCOLS["openai"].hello)]
    both = {"OPENAI_API_KEY": "of-openai", "OPENAI_ORG_ID": "org-1", "LLM_PROVIDER": "openrouter"}
    both["OPENAI_CUSTOM_HEADERS"] = "X-App: 1\nAuthorization: of-a-gateway"
    own = {"OPENROUTER_API_KEY": SECRET, "OPENROUTER_MODEL": "maker/m", "OPENROUTER_BASE_URL": provider.url}
    assert said(await ask(monkeypatch, **both, **own)) == ("openrouter:maker/m", "Hello")
    [asked] = provider.asked
    assert (asked.body["model"], asked.fields["authorization"]) == ("maker/m", f"Bearer {SECRET}")
    assert not {"x-app", "openai-organization"} & asked.fields.keys()


# --- Azure OpenAI ----------------------------------------------------------------------------------------------------


def azure(provider: Provider) -> dict[str, str]:
    return {
        "AZURE_OPENAI_ENDPOINT": provider.url,
        "AZURE_OPENAI_API_KEY": SECRET,
        "AZURE_OPENAI_API_VERSION": "2024-10-21",
        "AZURE_OPENAI_DEPLOYMENT": "my-deployment",
    }


@promise("OpenAI, Anthropic, Azure OpenAI, Amazon Bedrock and Vertex AI answer by settings")
async def test_azure_is_asked_for_a_deployment_with_its_key_and_version(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.scripts = [answer(PROTOCOLS["openai"].hello)]
    events = await ask(monkeypatch, **azure(provider), OPENAI_CUSTOM_HEADERS="x-app: 1", LLM_MAX_TOKENS="9")
    assert said(events) == ("azure:my-deployment", "Hello")
    [asked] = provider.asked
    assert (asked.method, asked.target) == (
        "POST",
        "/openai/deployments/my-deployment/chat/completions?api-version=2024-10-21",
    )
    assert (asked.fields["api-key"], asked.fields["x-app"]) == (SECRET, "1")
    assert "authorization" not in asked.fields
    assert asked.body["stream"] is True
    assert asked.body["max_completion_tokens"] == 9


async def test_the_key_of_azure_is_not_in_its_errors(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.scripts = [refusal(401, {"error": {"code": "401", "message": f"invalid subscription key {SECRET}"}})]
    with pytest.raises(LLMAuthenticationError, match=r"invalid subscription key \*\*\*"):
        await ask(monkeypatch, **azure(provider))


# --- Amazon Bedrock --------------------------------------------------------------------------------------------------

MODEL = "anthropic.claude-haiku-4-5-v1:0"
EVENTS: list[dict[str, Any]] = [
    {"type": "message_start", "message": {"usage": {"input_tokens": 5, "output_tokens": 1}}},
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hel"}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "lo"}},
    {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
    {"type": "message_stop"},
]


def message(payload: object, **headers: str) -> bytes:
    """A message of AWS's binary event stream."""
    fields = b"".join(
        struct.pack(">B", len(name)) + name.encode() + b"\x07" + struct.pack(">H", len(value)) + value.encode()
        for name, value in ((f":{name.replace('_', '-')}", value) for name, value in headers.items())
    )
    return framed(fields, json.dumps(payload).encode())


def framed(fields: bytes, body: bytes) -> bytes:
    """The same of header fields and a body as they are, with right checksums."""
    prelude = struct.pack(">II", 16 + len(fields) + len(body), len(fields))
    whole = prelude + struct.pack(">I", crc32(prelude)) + fields + body
    return whole + struct.pack(">I", crc32(whole))


def event(content: object) -> bytes:
    payload = {"bytes": b64encode(json.dumps(content).encode()).decode(), "p": "padding"}
    return message(payload, message_type="event", event_type="chunk", content_type="application/json")


def event_stream(*messages: bytes, cut: int = 11) -> Script:
    data = b"".join(messages)
    reads = (data[at : at + cut] for at in range(0, len(data), cut))
    return answer(*reads, content_type="application/vnd.amazon.eventstream")


def bedrock(provider: Provider) -> dict[str, str]:
    return {
        "BEDROCK_MODEL": MODEL,
        "AWS_REGION": "eu-central-1",
        "ANTHROPIC_BEDROCK_BASE_URL": provider.url,
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_SESSION_TOKEN": "session-token",
    }


@promise("OpenAI, Anthropic, Azure OpenAI, Amazon Bedrock and Vertex AI answer by settings")
async def test_bedrock_is_sent_a_signed_request_and_its_event_stream_is_read(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    provider.scripts = [event_stream(*map(event, EVENTS))]
    assert said(await ask(monkeypatch, **bedrock(provider))) == (f"bedrock:{MODEL}", "Hello")
    [asked] = provider.asked
    assert asked.target.replace("%3A", ":") == f"/model/{MODEL}/invoke-with-response-stream"
    assert asked.fields["authorization"].startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
    assert "/eu-central-1/bedrock/aws4_request" in asked.fields["authorization"]
    assert asked.fields["x-amz-security-token"] == "session-token"
    assert asked.body["anthropic_version"]
    assert asked.body["messages"][0]["role"] == "user"
    assert not {"model", "stream"} & asked.body.keys()


async def test_bedrock_takes_an_api_key_instead(provider: Provider, monkeypatch: pytest.MonkeyPatch) -> None:
    provider.scripts = [event_stream(*map(event, EVENTS), cut=10_000)]
    await ask(monkeypatch, **bedrock(provider), AWS_BEARER_TOKEN_BEDROCK=SECRET)
    assert provider.asked[0].fields["authorization"] == f"Bearer {SECRET}"


@pytest.mark.parametrize(
    ("last", "kind", "words"),
    [
        (
            message({"message": f"slow down {SECRET}"}, message_type="exception", exception_type="throttlingException"),
            LLMRateLimitedError,
            r"slow down \*\*\*",
        ),
        (
            message({"message": "bad schema"}, message_type="exception", exception_type="validationException"),
            LLMRequestError,
            "bad schema",
        ),
        (
            message({}, message_type="error", error_code="InternalFailure", error_message="it broke"),
            LLMError,
            "it broke",
        ),
        (b"", LLMStreamBrokenError, "broke off"),
        (event(EVENTS[3])[:-1] + b"\0", LLMStreamBrokenError, "cannot be read"),
        (framed(b"\x05a", b"{}"), LLMStreamBrokenError, "cannot be read"),
        (message(["no object"]), LLMStreamBrokenError, "cannot be read"),
    ],
    ids=["throttled", "refused", "error", "cut off", "wrong checksum", "wrong header", "wrong payload"],
)
async def test_a_failure_inside_the_event_stream_of_bedrock_is_an_error(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, last: bytes, kind: type[LLMError], words: str
) -> None:
    provider.scripts = [event_stream(*map(event, EVENTS[:3]), last)]
    with pytest.raises(kind, match=words):
        await ask(monkeypatch, **bedrock(provider))


async def test_the_text_before_a_message_that_cannot_be_read_is_kept_when_both_arrive_together() -> None:
    parser = EventStreamParser()
    assert len(parser.feed(event(EVENTS[2]) + framed(b"\x05a", b"{}"))) == 1
    with pytest.raises(LLMStreamBrokenError):
        parser.finish()


# --- Vertex AI -------------------------------------------------------------------------------------------------------


def vertex(provider: Provider) -> dict[str, str]:
    return {
        "VERTEX_MODEL": "claude-haiku-4-5@20251001",
        "ANTHROPIC_VERTEX_PROJECT_ID": "my-project",
        "CLOUD_ML_REGION": "europe-west1",
        "ANTHROPIC_VERTEX_BASE_URL": f"{provider.url}/v1",
    }


@asynccontextmanager
async def service_account(folder: Path) -> AsyncGenerator[Path]:
    """The key file of a service account, and the server that grants it tokens."""

    async def grant(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        body = json.dumps({"access_token": SECRET, "expires_in": 3600, "token_type": "Bearer"}).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        writer.close()

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
    async with await asyncio.start_server(grant, "127.0.0.1", 0) as server:
        account = {
            "type": "service_account",
            "project_id": "another-project",
            "private_key_id": "1",
            "private_key": pem,
            "client_email": "engine@my-project.example",
            "token_uri": f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/token",
        }
        path = folder / "account.json"
        path.write_text(json.dumps(account))
        yield path


@promise("OpenAI, Anthropic, Azure OpenAI, Amazon Bedrock and Vertex AI answer by settings")
async def test_vertex_is_asked_for_a_model_of_a_project_with_a_token_of_its_account(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    provider.scripts = [answer(PROTOCOLS["anthropic"].hello)]
    async with service_account(tmp_path) as path:
        monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(path))
        events = await ask(monkeypatch, **vertex(provider))
    assert said(events) == ("vertex:claude-haiku-4-5@20251001", "Hello")
    [asked] = provider.asked
    assert urlsplit(asked.target).path.replace("%40", "@") == (
        "/v1/projects/my-project/locations/europe-west1/publishers/anthropic/models/"
        "claude-haiku-4-5@20251001:streamRawPredict"
    )
    assert asked.fields["authorization"] == f"Bearer {SECRET}"
    assert asked.body["anthropic_version"]
    assert asked.body["stream"] is True
    assert "model" not in asked.body


@pytest.mark.parametrize(
    ("settings", "named"),
    [(bedrock, "AWS_BEARER_TOKEN_BEDROCK, or AWS_ACCESS_KEY_ID"), (vertex, "GOOGLE_APPLICATION_CREDENTIALS")],
)
async def test_without_credentials_the_error_names_the_settings(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, settings: Any, named: str
) -> None:
    left = {name: value for name, value in settings(provider).items() if "KEY" not in name and "TOKEN" not in name}
    with pytest.raises(LLMAuthenticationError, match=named):
        await ask(monkeypatch, **left)
    assert not provider.asked


# --- Their packages --------------------------------------------------------------------------------------------------


@promise("OpenAI, Anthropic, Azure OpenAI, Amazon Bedrock and Vertex AI answer by settings")
@pytest.mark.parametrize(
    ("settings", "package", "extra"),
    [
        (bedrock, "botocore.exceptions", r"dialog-engine\[bedrock\]"),
        (vertex, "google.auth.exceptions", r"dialog-engine\[vertex\]"),
    ],
)
async def test_a_missing_package_is_named_at_the_start(
    provider: Provider, monkeypatch: pytest.MonkeyPatch, settings: Any, package: str, extra: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "dialog_engine.llm.bedrock", raising=False)
    with pytest.raises(ConfigurationError, match=extra):
        await ask(monkeypatch, **settings(provider))
