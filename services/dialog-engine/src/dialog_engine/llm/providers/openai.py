"""Providers with OpenAI's chat completions. Each SDK is imported by the first provider that is opened."""

from abc import ABC
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, SecretStr

from dialog_engine.config.values import HttpUrl
from dialog_engine.llm.providers.base import Headers, ModelProvider, plain, plain_fields

if TYPE_CHECKING:
    from dialog_engine.llm.client import ChatClient
    from dialog_engine.llm.provider import Provider


class ChatCompletions(ModelProvider, ABC):
    """What all providers with this protocol share."""

    openai_extra_body: dict[str, Any] = Field(
        default_factory=dict, description="JSON object that is merged into every request, such as a temperature."
    )
    openai_custom_headers: Headers = Field(
        default_factory=dict,
        description="Header fields for every request, name: value, one per line. An empty value removes a default"
        " field.",
    )

    @property
    def extra_body(self) -> Mapping[str, Any]:
        return self.openai_extra_body

    def client(self) -> "type[ChatClient]":
        from dialog_engine.llm.openai_client import OpenAIChatClient  # noqa: PLC0415 -- see above

        return OpenAIChatClient


class OpenAI(ChatCompletions):
    """OpenAI, and every server with a compatible API."""

    selected_by = ("openai_api_key", "openai_base_url")
    model_setting = "openai_model"

    openai_api_key: SecretStr | None = Field(None, description="API key of the model's provider.")
    openai_base_url: HttpUrl | None = Field(None, description="Base URL of an OpenAI-compatible server; unset: OpenAI.")
    openai_model: str = Field("gpt-4.1-mini", min_length=1, description="Name of the model.")
    openai_org_id: str | None = Field(None, description="Organization to bill, if the key has several.")
    openai_project_id: str | None = Field(None, description="Project to bill, if the key has several.")

    def open(self, connect_seconds: float) -> "Provider":
        from dialog_engine.llm.openai_provider import openai_provider  # noqa: PLC0415 -- see above

        return openai_provider(
            self.openai_base_url,
            plain(self.openai_api_key),
            headers=plain_fields(self.openai_custom_headers),
            organization=self.openai_org_id,
            project=self.openai_project_id,
            connect_seconds=connect_seconds,
        )


class Azure(ChatCompletions):
    """Azure OpenAI. Its models are named by deployment."""

    selected_by = ("azure_openai_endpoint",)
    model_setting = "azure_openai_deployment"
    needs = ("azure_openai_api_key", "azure_openai_api_version", "azure_openai_deployment")
    profile = "openai"

    azure_openai_endpoint: HttpUrl | None = Field(
        None, description="Azure OpenAI: https://<resource>.openai.azure.com. OPENAI_CUSTOM_HEADERS count here too."
    )
    azure_openai_api_key: SecretStr | None = Field(None, description="Key for Azure OpenAI.")
    azure_openai_api_version: str | None = Field(None, description="Version of its API, such as 2024-10-21.")
    azure_openai_deployment: str | None = Field(None, description="The deployment that answers there.")

    def open(self, connect_seconds: float) -> "Provider":
        from dialog_engine.llm.openai_provider import azure_provider  # noqa: PLC0415 -- see above

        return azure_provider(
            self.azure_openai_endpoint or "",
            plain(self.azure_openai_api_key) or "",
            self.azure_openai_api_version or "",
            headers=plain_fields(self.openai_custom_headers),
            connect_seconds=connect_seconds,
        )


class OpenRouter(ChatCompletions):
    """OpenRouter, which forwards to many makers' models, beside OpenAI or a server of one's own."""

    selected_by = ("openrouter_api_key",)
    model_setting = "openrouter_model"
    needs = ("openrouter_model",)

    openrouter_api_key: SecretStr | None = Field(None, description="Key for OpenRouter.")
    openrouter_model: str | None = Field(None, description="The model that answers there: maker/model.")
    openrouter_base_url: HttpUrl = Field(
        "https://openrouter.ai/api/v1", description="Its address, or that of a gateway in front of it."
    )

    def open(self, connect_seconds: float) -> "Provider":
        from dialog_engine.llm.openai_provider import openai_provider  # noqa: PLC0415 -- see above

        key = plain(self.openrouter_api_key)
        # The SDK reads the variables of OpenAI by itself, and would send what is meant for there.
        of_openai = (*self.openai_custom_headers, "openai-organization", "openai-project")
        headers = {name.lower(): "" for name in of_openai} | {"authorization": f"Bearer {key}"}
        return openai_provider(self.openrouter_base_url, key, headers=headers, connect_seconds=connect_seconds)
