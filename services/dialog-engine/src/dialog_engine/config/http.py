"""Where the engine listens, and which connections it takes."""

import ipaddress
from functools import lru_cache
from typing import Literal, Self

from pydantic import Field, model_validator

from callstream_runtime.settings_sources import Subject
from dialog_engine.config.values import Origins, ProxyAddresses


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@lru_cache(maxsize=100)
def is_own_name(host: str) -> bool:
    """Whether a Host header, or an origin without its scheme, names this machine's loopback, with a port or without."""
    name, bracket, port = host.lower().rpartition("]")
    if bracket:
        return name.startswith("[") and _is_port(port) and is_loopback(name[1:])
    name, _, port = host.lower().partition(":")
    return _is_port(f":{port}" if port else "") and is_loopback(name)


def _is_port(text: str) -> bool:
    return text == "" or (text.startswith(":") and text[1:].isdecimal())


class HttpSettings(Subject):
    """The ports, and what is in front of them."""

    host: str = Field("127.0.0.1", description="Address to listen on. Any other than loopback needs API_KEYS.")
    port: int = Field(8000, ge=0, le=65535, description="Port to listen on.")
    forwarded_allow_ips: ProxyAddresses = Field(
        "",
        description="Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed,"
        " separated by commas. Unset: nobody's.",
    )
    cors_origins: Origins = Field(
        default_factory=tuple,
        description="Origins of pages that may use the API from browsers, with a key or a token, separated by commas:"
        " https://app.example. Unset: the engine's own page only.",
    )
    operations_host: str = Field("127.0.0.1", description="Addresses of OPERATIONS_PORT, separated by commas.")
    operations_port: int | None = Field(
        None,
        ge=1,
        le=65535,
        description="A second port with /healthz, /readyz, /metrics and /openapi.json, without keys, for own networks.",
    )
    max_connections: int = Field(10_000, ge=1, description="Largest number of open connections to this engine.")
    max_connections_per_address: int = Field(
        1_000,
        ge=1,
        description="Largest number of open connections from one address, such as that of a proxy.",
    )
    stream_ping_seconds: float = Field(
        15, ge=0.1, le=15, description="How often a quiet event stream sends something, so that no proxy ends it."
    )
    on_disconnect: Literal["protocol", "continue", "cancel"] = Field(
        "protocol",
        description="What becomes of a turn that nobody reads any more, unless its request says it (X-On-Disconnect):"
        " protocol is what is usual in the protocol of the request, which for POST /v1/chat is continue.",
    )
    shutdown_grace_seconds: float = Field(5, ge=0, description="How long running turns may continue after SIGTERM.")

    @model_validator(mode="after")
    def _check_ports(self) -> Self:
        if self.operations_port == self.port:
            raise ValueError("OPERATIONS_PORT must be another port than PORT")
        return self
