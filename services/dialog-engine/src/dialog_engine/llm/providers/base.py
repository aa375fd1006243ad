"""What a provider of models is: its settings, which of them select it, and how it is opened."""

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Self

from pydantic import BeforeValidator, SecretStr, model_validator
from pydantic_settings import NoDecode

from callstream_runtime.settings_sources import Subject

if TYPE_CHECKING:  # with the SDKs: together they take seconds, and 80 MB
    from dialog_engine.llm.client import ChatClient
    from dialog_engine.llm.provider import Provider

_FIELD_NAME = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"


def _headers(value: object) -> object:
    """`name: value`, one per line, as the official SDKs read it."""
    if not isinstance(value, str):
        return value
    fields = [line.partition(":") for line in value.splitlines() if line.strip()]
    if not all(colon and re.fullmatch(_FIELD_NAME, name.strip()) for name, colon, _ in fields):
        raise ValueError("must be name: value, one per line")
    return {name.strip(): text.strip() for name, _, text in fields}


Headers = Annotated[dict[str, SecretStr], NoDecode, BeforeValidator(_headers)]


class ModelProvider(Subject, ABC):
    """One provider: its settings, and how it is opened. Its name is that of its field in `Providers`."""

    selected_by: ClassVar[tuple[str, ...]]
    """The settings of which any configures it, as names of fields."""
    model_setting: ClassVar[str]
    """The setting with the name of its model, as a name of a field."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The settings that must be set too, then."""
    profile: ClassVar[str | None] = None
    """The profile of a cloud that serves the models of one maker at any address; None: derived from the address."""

    @property
    def model(self) -> str:
        """The name of the model that answers when a request chooses none; "" while it is not configured."""
        return getattr(self, self.model_setting) or ""

    @property
    @abstractmethod
    def extra_body(self) -> Mapping[str, Any]:
        """Merged into the body of every request."""

    @abstractmethod
    def open(self, connect_seconds: float) -> "Provider":
        """Its connections; `connect_seconds` bounds each attempt to connect.

        Raises:
            ConfigurationError: a setting cannot be used, or a package is not installed.
        """

    @abstractmethod
    def client(self) -> "type[ChatClient]":
        """The client for its protocol."""

    @property
    def configured(self) -> bool:
        """Whether the settings select it."""
        return any(getattr(self, name) for name in self.selected_by)

    @classmethod
    def variables(cls) -> str:
        """The variables that select it, for a text."""
        return " or ".join(name.upper() for name in cls.selected_by)

    @model_validator(mode="after")
    def _have_what_it_needs(self) -> Self:
        missing = [name.upper() for name in self.needs if not getattr(self, name)]
        if self.configured and missing:
            raise ValueError(f"{self.variables()} is set: set {' and '.join(missing)} too")
        return self


def plain(value: SecretStr | None) -> str | None:
    """The value of a secret, for an SDK."""
    return value.get_secret_value() if value else None


def plain_fields(headers: Mapping[str, SecretStr]) -> dict[str, str]:
    """Header fields with their values, for an SDK."""
    return {name: value.get_secret_value() for name, value in headers.items()}
