"""Who may make requests: API keys, and people whom an OpenID Connect provider has signed in."""

from pathlib import Path
from typing import Annotated, Self
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import NoDecode

from callstream_runtime.settings_sources import Subject
from dialog_engine.config.http import is_loopback
from dialog_engine.config.values import HttpUrl
from plugins_contract.signing import is_placeholder

SIGN_IN_CALLBACK = "/sign-in/callback"
"""The path below PUBLIC_URL to which the OpenID Connect provider sends browsers back."""


SHORTEST_SECRET = 32
"""Characters of a secret that signs with HS256."""
SHORTEST_KEY = 16
"""Characters of an API key: shorter ones can be guessed."""


class IdentitySettings(Subject):
    """What a request must prove. Without any of it the engine listens on loopback only."""

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
    oidc_issuer: HttpUrl | None = Field(
        None, description="OpenID Connect provider whose tokens are accepted: its issuer, an https:// URL."
    )
    oidc_audience: str | None = Field(None, description="Audience of the access tokens that the API accepts.")
    oidc_client_id: str | None = Field(None, description="The page signs people in as this client of the provider.")
    oidc_client_secret: SecretStr | None = Field(None, description="The client's secret, if it has one.")
    public_url: HttpUrl | None = Field(None, description="Address of the page in browsers, where sign-ins come back.")
    oidc_scopes: str = Field("openid profile email", description="Scopes of the sign-in, separated by spaces.")
    oidc_roles_claim: str = Field("roles", description="Claim with the roles of a person; dots lead into objects.")
    oidc_operator_role: str = Field("operator", description="The value in that claim that makes an operator.")
    session_keys_file: Path | None = Field(
        None, description="File of keys that seal the page's sessions, one in each line. Unset: a new key per start."
    )
    openwebui_jwt_secret: SecretStr | None = Field(
        None,
        description="Secret with which Open WebUI signs who asks (its FORWARD_USER_INFO_HEADER_JWT_SECRET): each person"
        " behind its key then is a subject of its own.",
    )
    session_seconds: int = Field(28_800, ge=60, description="How long a sign-in on the page lasts.")

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

    @field_validator("openwebui_jwt_secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None and len(secret.get_secret_value()) < SHORTEST_SECRET:
            raise ValueError(f"OPENWEBUI_JWT_SECRET is shorter than {SHORTEST_SECRET} characters")
        return secret

    @model_validator(mode="after")
    def _check_identity(self) -> Self:
        if self.oidc_issuer is None:
            for name in ("oidc_audience", "oidc_client_id"):
                if getattr(self, name):
                    raise ValueError(f"{name.upper()} is set: set OIDC_ISSUER too")
            return self
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
        return self

    @property
    def needs_sign_in(self) -> bool:
        """Whether a request must prove who makes it."""
        return bool(self.api_keys or self.api_keys_file or self.oidc_issuer)
