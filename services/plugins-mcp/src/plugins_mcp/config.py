"""Settings of the worker, from the environment, `.env` and secret files. A wrong value prevents the start."""

from pathlib import Path
from typing import Self, TypeVar

from pydantic import Field, SecretStr, model_validator

from callstream_runtime.settings import RedisSettings, ServiceSettings
from callstream_runtime.settings_sources import InvalidSettingsError, read_settings
from plugins_contract.messages import MAX_TIMEOUT_MS
from plugins_mcp.errors import SettingsError


class Settings(ServiceSettings):
    """All settings of the worker. Each name is its environment variable in lower case."""

    mcp_config: Path | None = Field(None, description="A servers file (mcp.json), in the format of other MCP clients.")
    mcp_server_endpoint: str | None = Field(None, description="One MCP server without a file: its Streamable HTTP URL.")
    mcp_api_key: SecretStr | None = Field(None, description="Sent to MCP_SERVER_ENDPOINT as a bearer token.")
    accept_first_listings: bool = Field(
        False,
        description="With REQUEST_KEYS_FILE: a trusted server of which Redis has no signed record is believed at once.",
    )
    mcp_max_retries: int = Field(
        2, ge=0, le=10, description="Retries of a call that is safe to repeat; other calls are never retried."
    )

    mcp_request_timeout_ms: int = Field(
        30_000,
        ge=100,
        le=MAX_TIMEOUT_MS,
        description="Total time of a tool call, unless its request or its server's configuration sets another.",
    )

    worker_pool: str = Field(
        "",
        pattern=r"^([a-z0-9][a-z0-9-]{0,39})?$",
        description="Name of this worker's pool, whose stream an autoscaler can read: all of it have the same servers.",
    )
    worker_concurrency: int = Field(32, ge=1, le=1000, description="Calls that one worker runs at the same time.")
    worker_max_sessions: int = Field(
        64,
        ge=1,
        description="Sessions that one worker has open at MCP servers that keep state, over all of them.",
    )
    result_max_bytes: int = Field(
        1_048_576,
        ge=1024,
        description="Bytes of text that are kept of a result, from its head and its tail.",
    )
    engine_url: str = Field(
        "",
        pattern=r"^(https?://[^\s/@?#]+/?)?$",
        description="The OPERATIONS_PORT of the engines, such as http://engine:8001: results past 256 KiB go there"
        " instead of through Redis. Needs REQUEST_KEYS_FILE.",
    )
    development_echo: bool = Field(
        False, description="Offers a tool that the worker answers itself, to measure the path of a call. Not for users."
    )
    health_host: str = Field(
        "127.0.0.1", description="Addresses of /healthz, /readyz and /metrics, separated by commas."
    )
    health_port: int = Field(8081, ge=0, le=65535, description="Port of /healthz, /readyz and /metrics.")
    drain_seconds: float = Field(30, ge=0, description="How long running calls may continue after SIGTERM.")

    @model_validator(mode="after")
    def _have_what_they_need(self) -> Self:
        if self.mcp_config is None and self.mcp_server_endpoint is None and not self.development_echo:
            raise ValueError("MCP_CONFIG or MCP_SERVER_ENDPOINT must be set: without one there are no tools")
        if self.engine_url and not self.request_keys_file:
            raise ValueError("ENGINE_URL needs REQUEST_KEYS_FILE: engines take signed results only")
        return self


def load_settings() -> Settings:
    """The settings of the worker.

    Raises:
        SettingsError: the text names every wrong setting, and shows no secret.
    """
    return _load(Settings)


def load_operator_settings() -> RedisSettings:
    """The settings of the commands for operators: Redis, and no MCP server. Raises as `load_settings` does."""
    return _load(RedisSettings)


_S = TypeVar("_S", bound=RedisSettings)


def _load(kind: type[_S]) -> _S:
    try:
        return read_settings(kind)
    except InvalidSettingsError as error:
        raise SettingsError(str(error)) from None
