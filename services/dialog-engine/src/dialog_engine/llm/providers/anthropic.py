"""Providers with Anthropic's Messages API. Each SDK is imported by the first provider that is opened."""

from abc import ABC
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pydantic import Field, SecretStr

from dialog_engine.config.values import HttpUrl
from dialog_engine.errors import ConfigurationError
from dialog_engine.llm.providers.base import Headers, ModelProvider, plain, plain_fields

if TYPE_CHECKING:
    from dialog_engine.llm.client import ChatClient
    from dialog_engine.llm.provider import Provider


class Messages(ModelProvider, ABC):
    """What all providers with this protocol share."""

    anthropic_extra_body: dict[str, Any] = Field(
        default_factory=dict, description='Like OPENAI_EXTRA_BODY, such as {"thinking": {"type": "adaptive"}}.'
    )
    anthropic_custom_headers: Headers = Field(
        default_factory=dict, description="Like OPENAI_CUSTOM_HEADERS, such as anthropic-beta: context-1m-2025-08-07."
    )

    @property
    def extra_body(self) -> Mapping[str, Any]:
        return self.anthropic_extra_body

    def client(self) -> "type[ChatClient]":
        from dialog_engine.llm.anthropic_client import AnthropicChatClient  # noqa: PLC0415 -- see above

        return AnthropicChatClient


class Anthropic(Messages):
    """Anthropic, and every server with a compatible API."""

    selected_by = ("anthropic_api_key", "anthropic_base_url")
    model_setting = "anthropic_model"

    anthropic_api_key: SecretStr | None = Field(None, description="API key of Anthropic.")
    anthropic_base_url: HttpUrl | None = Field(None, description="Base URL of a server with Anthropic's Messages API.")
    anthropic_model: str = Field("claude-haiku-4-5", min_length=1, description="Name of the model.")

    def open(self, connect_seconds: float) -> "Provider":
        from dialog_engine.llm.anthropic_client import anthropic_provider  # noqa: PLC0415 -- see above

        return anthropic_provider(
            self.anthropic_base_url,
            plain(self.anthropic_api_key),
            headers=plain_fields(self.anthropic_custom_headers),
            connect_seconds=connect_seconds,
        )


class Bedrock(Messages):
    """Claude on Amazon Bedrock. Without explicit credentials the AWS SDK finds some."""

    selected_by = ("bedrock_model",)
    model_setting = "bedrock_model"
    needs = ("aws_region",)
    profile = "anthropic"

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

    def open(self, connect_seconds: float) -> "Provider":
        try:
            from dialog_engine.llm.bedrock import AwsCredentials, bedrock_provider  # noqa: PLC0415 -- see above
        except ImportError:
            raise ConfigurationError("BEDROCK_MODEL needs the AWS SDK: install dialog-engine[bedrock]") from None
        bearer = plain(self.aws_bearer_token_bedrock)
        credentials = AwsCredentials(
            self.aws_access_key_id, plain(self.aws_secret_access_key), plain(self.aws_session_token), self.aws_profile
        )
        return bedrock_provider(
            self.aws_region or "",
            AwsCredentials(bearer_token=bearer) if bearer else credentials,
            base_url=self.anthropic_bedrock_base_url,
            headers=plain_fields(self.anthropic_custom_headers),
            connect_seconds=connect_seconds,
        )


class Vertex(Messages):
    """Claude on Google Cloud's Vertex AI, with Google's application default credentials."""

    selected_by = ("vertex_model",)
    model_setting = "vertex_model"
    needs = ("anthropic_vertex_project_id", "cloud_ml_region")
    profile = "anthropic"

    vertex_model: str | None = Field(
        None, description="Claude on Google Cloud's Vertex AI, by its model id. Needs dialog-engine[vertex]."
    )
    anthropic_vertex_project_id: str | None = Field(None, description="Google Cloud project of Vertex AI.")
    cloud_ml_region: str | None = Field(None, description="Region of Vertex AI, such as us-east5 or global.")
    anthropic_vertex_base_url: HttpUrl | None = Field(
        None, description="Another endpoint of Vertex AI, such as a gateway."
    )

    def open(self, connect_seconds: float) -> "Provider":
        from dialog_engine.llm.anthropic_client import vertex_provider  # noqa: PLC0415 -- see above

        return vertex_provider(
            self.anthropic_vertex_project_id or "",
            self.cloud_ml_region or "",
            base_url=self.anthropic_vertex_base_url,
            headers=plain_fields(self.anthropic_custom_headers),
            connect_seconds=connect_seconds,
        )
