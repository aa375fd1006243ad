"""The providers of models. To add one: a class with its settings, beside those of its protocol, and a field here."""

from typing import cast

from pydantic import BaseModel

from dialog_engine.llm.providers.anthropic import Anthropic, Bedrock, Vertex
from dialog_engine.llm.providers.base import ModelProvider
from dialog_engine.llm.providers.openai import Azure, OpenAI, OpenRouter


class Providers(BaseModel):
    """Every provider, by the name that stands before the colon in `provider:model`.

    The first one that is configured answers, unless LLM_PROVIDER names another.
    """

    openai: OpenAI
    anthropic: Anthropic
    azure: Azure
    bedrock: Bedrock
    vertex: Vertex
    openrouter: OpenRouter

    @classmethod
    def kinds(cls) -> dict[str, type[ModelProvider]]:
        """The class of each, by name, in their order."""
        return {name: cast("type[ModelProvider]", field.annotation) for name, field in cls.model_fields.items()}

    def named(self, name: str) -> ModelProvider:
        """The provider of this name."""
        return getattr(self, name)

    @property
    def configured(self) -> tuple[str, ...]:
        """The names of those that the settings select."""
        return tuple(name for name in PROVIDERS if self.named(name).configured)


PROVIDERS = tuple(Providers.model_fields)
"""Their names."""
