"""All settings of the engine, one model per subject. An invalid value stops the start."""

from typing import Self

from pydantic import BaseModel, model_validator

from callstream_runtime.settings import ServiceSettings
from dialog_engine.config import load
from dialog_engine.config.facades import FacadeSettings
from dialog_engine.config.http import HttpSettings, is_loopback
from dialog_engine.config.identity import IdentitySettings
from dialog_engine.config.limits import LimitSettings
from dialog_engine.config.store import EngineStoreSettings
from dialog_engine.config.tools import ToolSettings
from dialog_engine.llm.settings import ModelSettings


class Settings(BaseModel):
    """The settings by subject: a part of the engine receives those of its own. Rules over several subjects are here."""

    service: ServiceSettings
    store: EngineStoreSettings
    http: HttpSettings
    facades: FacadeSettings
    identity: IdentitySettings
    models: ModelSettings
    tools: ToolSettings
    limits: LimitSettings

    @model_validator(mode="after")
    def _check_listening(self) -> Self:
        if self.identity.needs_sign_in:
            return self
        if self.http.operations_port:
            raise ValueError("OPERATIONS_PORT is for engines with API_KEYS, API_KEYS_FILE or OIDC_ISSUER: unset it")
        if not is_loopback(self.http.host):
            raise ValueError(
                f"HOST {self.http.host} can be reached from other machines: set API_KEYS, API_KEYS_FILE or OIDC_ISSUER,"
                " or HOST=127.0.0.1"
            )
        return self

    @property
    def proxy_warning(self) -> str | None:
        """What is wrong with FORWARDED_ALLOW_IPS; None if nothing is known to be."""
        proxies = self.http.forwarded_allow_ips
        if proxies == "*":
            return "FORWARDED_ALLOW_IPS is *: every client can claim any address; name the addresses of your proxies"
        proxied = not is_loopback(self.http.host) or (self.identity.public_url or "").startswith("https://")
        if self.identity.needs_sign_in and proxied and not proxies:
            return (
                "FORWARDED_ALLOW_IPS is not set: behind a proxy all clients share its address, and the limit of failed"
                " attempts; set it to the addresses of the proxy"
            )
        return None


def load_settings() -> Settings:
    """Read the settings.

    Raises:
        ConfigurationError: the text names every invalid setting, and contains no value of a secret.
    """
    return load(Settings)
