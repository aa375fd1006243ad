"""The settings of Redis, which every program has under the same names."""

import ssl
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, Field, SecretStr, ValidationError, model_validator

from plugins_contract.redis_address import Login, RedisAddress, Tls, parse_redis_url


def _readable_url(url: str) -> str:
    parse_redis_url(url)
    return url


class RedisSettings(BaseModel):
    """A part of each program's settings. What is wrong names its variable and says what to do; no secret is shown."""

    redis_url: Annotated[str, AfterValidator(_readable_url)] = Field(
        "redis://127.0.0.1:6379/0", repr=False, description="Redis or Valkey, 7.0 or newer."
    )
    redis_username: str | None = Field(None, description="ACL user, when it is not in REDIS_URL.")
    redis_password: SecretStr | None = Field(None, description="Its password, when it is not in REDIS_URL.")
    redis_sentinel_username: str | None = Field(None, description="ACL user of the Sentinels.")
    redis_sentinel_password: SecretStr | None = Field(None, description="Its password.")
    redis_tls_ca_file: Path | None = Field(None, description="PEM file of the CA that signed the server's certificate.")
    redis_tls_cert_file: Path | None = Field(None, description="PEM file of the certificate we show to the server.")
    redis_tls_key_file: Path | None = Field(None, description="PEM file of its private key, not encrypted.")
    redis_tls_check_hostname: bool = Field(True, description="Whether the certificate must be for the host we ask.")
    redis_key_prefix: str = Field("", description="Put before every key; with a hash tag for Redis Cluster.")

    @property
    def redis_address(self) -> RedisAddress:
        """Where Redis is, from all of these."""
        url = parse_redis_url(self.redis_url)
        login = Login(self.redis_username or url.login.username, _secret(self.redis_password) or url.login.password)
        tls = url.tls and Tls(
            _path(self.redis_tls_ca_file),
            _path(self.redis_tls_cert_file),
            _path(self.redis_tls_key_file),
            self.redis_tls_check_hostname,
        )
        return RedisAddress(
            hosts=url.hosts,
            socket_path=url.socket_path,
            service=url.service,
            database=url.database,
            login=login,
            sentinel_login=Login(self.redis_sentinel_username, _secret(self.redis_sentinel_password)),
            tls=tls,
        )

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        url = parse_redis_url(self.redis_url)
        for name, value, in_url in (
            ("REDIS_USERNAME", self.redis_username, url.login.username),
            ("REDIS_PASSWORD", self.redis_password, url.login.password),
        ):
            if value and in_url:
                raise ValueError(f"{name}: REDIS_URL has one as well: take it out there, or unset {name}")
        if self.redis_username and not (self.redis_password or url.login.password):
            raise ValueError("REDIS_USERNAME: a user needs a password: set REDIS_PASSWORD")
        if url.login.username and not (self.redis_password or url.login.password):
            raise ValueError("REDIS_URL: it names a user without a password: set REDIS_PASSWORD")
        if (self.redis_sentinel_username or self.redis_sentinel_password) and not url.service:
            name = "REDIS_SENTINEL_USERNAME" if self.redis_sentinel_username else "REDIS_SENTINEL_PASSWORD"
            raise ValueError(f"{name}: REDIS_URL names no Sentinels: it must begin with redis+sentinel://")
        if self.redis_sentinel_username and not self.redis_sentinel_password:
            raise ValueError("REDIS_SENTINEL_USERNAME: a user needs a password: set REDIS_SENTINEL_PASSWORD")
        self._check_tls(url.tls is not None)
        return self

    def _check_tls(self, tls: bool) -> None:
        files = {
            "REDIS_TLS_CA_FILE": self.redis_tls_ca_file,
            "REDIS_TLS_CERT_FILE": self.redis_tls_cert_file,
            "REDIS_TLS_KEY_FILE": self.redis_tls_key_file,
        }
        for name, path in files.items():
            if path is None:
                continue
            if not tls:
                raise ValueError(f"{name}: REDIS_URL is not for TLS: it must begin with rediss://")
            try:
                path.read_bytes()
            except OSError as error:
                raise ValueError(f"{name}: {path} cannot be read: {error.strerror}") from None
        if self.redis_tls_key_file and not self.redis_tls_cert_file:
            raise ValueError(
                "REDIS_TLS_KEY_FILE: set REDIS_TLS_CERT_FILE too: a key is nothing without its certificate"
            )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.redis_tls_ca_file:
            try:
                context.load_verify_locations(self.redis_tls_ca_file)
            except ssl.SSLError:
                raise ValueError(f"REDIS_TLS_CA_FILE: {self.redis_tls_ca_file} holds no certificate in PEM") from None
        if self.redis_tls_cert_file:
            try:
                # A password of nothing: without one OpenSSL would ask the terminal for that of an encrypted key.
                context.load_cert_chain(self.redis_tls_cert_file, self.redis_tls_key_file, password="")
            except ssl.SSLError:
                raise ValueError(
                    "REDIS_TLS_CERT_FILE: it and REDIS_TLS_KEY_FILE must be a certificate and its own key, in PEM and"
                    " not encrypted"
                ) from None


def problems(error: ValidationError) -> str:
    """What is wrong, one line for each setting, by the name of its variable. No value is shown."""
    return "\n".join(
        f"{'.'.join(map(str, each['loc'])).upper()}: {each['msg']}".removeprefix(": ").replace("Value error, ", "")
        for each in error.errors(include_input=False, include_url=False)
    )


def _secret(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _path(path: Path | None) -> str | None:
    return str(path) if path else None
