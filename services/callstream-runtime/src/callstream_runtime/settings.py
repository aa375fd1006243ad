"""The settings that every program has under the same names: where Redis is, and what is logged."""

import re
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from pydantic import AfterValidator, Field, SecretStr, model_validator

from callstream_runtime.encryption_keys import read_encryption_keys
from callstream_runtime.settings_sources import Subject
from plugins_contract.encryption import Cipher
from plugins_contract.signing import RequestKeys, read_request_keys

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
"""`rediss` is TLS. With `+sentinel` the hosts are Sentinels."""
REDIS_PORT = 6379
SENTINEL_PORT = 26379
_NOT_A_URL = "is not a URL: is the port a number, and are / # ? in the password written as %2F %23 %3F?"


@dataclass(frozen=True, slots=True)
class Login:
    """An ACL user. Without a name it is `default`; without a password there is no login."""

    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class Tls:
    """How server and client authenticate. Paths of PEM files; without a CA file the system's CAs are trusted."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One server, or the Sentinels that know the master of `service`. Shows no password when it is printed."""

    hosts: tuple[tuple[str, int], ...] = ()
    socket_path: str = ""
    """A Unix socket, instead of `hosts`."""
    service: str = ""
    database: int = 0
    login: Login = Login()
    sentinel_login: Login = Login()
    tls: Tls | None = None
    """For the server and for Sentinels alike."""

    def __str__(self) -> str:
        if self.socket_path:
            return f"unix://{self.socket_path}"
        scheme = ("rediss" if self.tls else "redis") + ("+sentinel" if self.service else "")
        hosts = ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.hosts)
        return f"{scheme}://{hosts}/{self.service}{'/' * bool(self.service)}{self.database}"


def parse_redis_url(url: str) -> RedisAddress:
    """The address that a URL names.

    | URL | what |
    |---|---|
    | `redis://[user:password@]host[:6379][/database]` | a server |
    | `rediss://…` | the same over TLS |
    | `unix://[user:password@]/path[?db=database]` | a Unix socket |
    | `redis+sentinel://[user:password@]host[:26379],host,…/service[/database]` | the master that Sentinels know |
    | `rediss+sentinel://…` | the same over TLS |

    Raises:
        ValueError: `url` cannot be used. The text says why, and holds nothing that may be a password.
    """
    scheme, separator, _ = url.partition("://")
    if not separator or scheme not in SCHEMES:
        raise ValueError(f"must begin with {', '.join(f'{each}://' for each in SCHEMES[:-1])} or {SCHEMES[-1]}://")
    try:
        parts = urlsplit(url)
        netloc, at, hosts = parts.netloc.rpartition("@")
        login = _login(netloc) if at else Login()
        if not at and "@" in url:
            raise _WrongUrlError(_NOT_A_URL)
        if scheme == "unix":
            return _unix(parts, hosts, login)
        sentinels = scheme.endswith("+sentinel")
        default_port = SENTINEL_PORT if sentinels else REDIS_PORT
        endpoints = tuple(_endpoint(each, default_port) for each in hosts.split(","))
    except _WrongUrlError:
        raise
    except ValueError:
        # The library's text may hold a part of the password.
        raise ValueError(_NOT_A_URL) from None
    if parts.query or parts.fragment:
        raise ValueError(
            "has options after a ? or a #, which are not supported: use the settings that begin with REDIS_"
        )
    if len(endpoints) > 1 and not sentinels:
        raise ValueError("names several hosts: only redis+sentinel:// may")
    path = unquote(parts.path).strip("/")
    service, _, database = path.partition("/") if sentinels else ("", "", path)
    if sentinels and not service:
        raise ValueError("names no service, such as redis+sentinel://host:26379/mymaster/0")
    tls = Tls() if scheme.startswith("rediss") else None
    return RedisAddress(hosts=endpoints, service=service, database=_database(database), login=login, tls=tls)


class _WrongUrlError(ValueError):
    """Its text is written here, and holds no part of the URL."""


def _unix(parts: SplitResult, host: str, login: Login) -> RedisAddress:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    database = options.pop("db", "")
    if options or parts.fragment:
        raise _WrongUrlError("has options after the ? that are not supported: only ?db=1 is")
    if host or not parts.path:
        raise _WrongUrlError("has no path, such as unix:///run/redis.sock")
    return RedisAddress(socket_path=unquote(parts.path), database=_database(database), login=login)


def _login(text: str) -> Login:
    username, _, password = text.partition(":")
    return Login(unquote(username) or None, unquote(password) or None)


def _endpoint(text: str, default_port: int) -> tuple[str, int]:
    parts = urlsplit(f"//{text}")
    if not parts.hostname:
        raise _WrongUrlError("has no host")
    return parts.hostname, default_port if parts.port is None else parts.port


def _database(text: str) -> int:
    if text and not re.fullmatch(r"\d{1,4}", text, re.ASCII):
        raise _WrongUrlError("names a database that is not a number")
    return int(text or 0)


def _readable_url(url: str) -> str:
    parse_redis_url(url)
    return url


class EncryptionSettings(Subject):
    """The keys of encryption at rest, which every program that reads texts needs."""

    encryption_keys_file: Path | None = Field(
        None, description="File of keys that encrypt texts at rest, one in each line: the first encrypts, all decrypt."
    )

    @property
    def cipher(self) -> Cipher:
        """The keys of `encryption_keys_file`. Raises ValueError when the file was made unusable after the start."""
        return read_encryption_keys(self.encryption_keys_file)

    @model_validator(mode="after")
    def _have_encryption_keys(self) -> Self:
        try:
            read_encryption_keys(self.encryption_keys_file)
        except ValueError as error:
            raise ValueError(f"ENCRYPTION_KEYS_FILE: {error}") from None
        return self


class RedisSettings(EncryptionSettings):
    """The Redis part of each program's settings. An error names its variable and the fix, and holds no secret."""

    redis_url: Annotated[str, AfterValidator(_readable_url)] = Field(
        "redis://127.0.0.1:6379/0", repr=False, description="Redis or Valkey, 7.0 or newer."
    )
    redis_username: str | None = Field(None, description="ACL user, when it is not in REDIS_URL.")
    redis_password: SecretStr | None = Field(None, description="Its password, when it is not in REDIS_URL.")
    redis_sentinel_username: str | None = Field(None, description="ACL user of the Sentinels.")
    redis_sentinel_password: SecretStr | None = Field(None, description="Its password.")
    redis_tls_ca_file: Path | None = Field(None, description="PEM file of the CA that signed the server's certificate.")
    redis_tls_cert_file: Path | None = Field(None, description="PEM file of the client certificate.")
    redis_tls_key_file: Path | None = Field(None, description="PEM file of its private key, not encrypted.")
    redis_tls_check_hostname: bool = Field(
        True, description="Whether the server's certificate must be for the host in REDIS_URL."
    )
    redis_key_prefix: str = Field("", description="Put before every key; with a hash tag for Redis Cluster.")
    request_keys_file: Path | None = Field(
        None, description="File of keys that sign requests, one in each line: the first signs, all are accepted."
    )

    @property
    def request_keys(self) -> RequestKeys:
        """The keys of `request_keys_file`. Raises ValueError when the file was made unusable after the start."""
        return read_request_keys(self.request_keys_file)

    @property
    def redis_address(self) -> RedisAddress:
        """The address that these settings make together."""
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
                raise ValueError(f"{name}: REDIS_URL has one as well: remove it there, or unset {name}")
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
        try:
            read_request_keys(self.request_keys_file)
        except ValueError as error:
            raise ValueError(f"REQUEST_KEYS_FILE: {error}") from None
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
            raise ValueError("REDIS_TLS_KEY_FILE: set REDIS_TLS_CERT_FILE too: a key needs its certificate")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self.redis_tls_ca_file:
            try:
                context.load_verify_locations(self.redis_tls_ca_file)
            except ssl.SSLError:
                raise ValueError(f"REDIS_TLS_CA_FILE: {self.redis_tls_ca_file} holds no certificate in PEM") from None
        if self.redis_tls_cert_file:
            try:
                # An empty password: without one OpenSSL would ask the terminal for that of an encrypted key.
                context.load_cert_chain(self.redis_tls_cert_file, self.redis_tls_key_file, password="")
            except ssl.SSLError:
                raise ValueError(
                    "REDIS_TLS_CERT_FILE: it and REDIS_TLS_KEY_FILE must be a certificate and its own key, in PEM and"
                    " not encrypted"
                ) from None


LogFormat = Literal["human", "json"]


class ServiceSettings(RedisSettings):
    """The part that both services have: Redis, and what is logged."""

    rights_file: Path | None = Field(
        None, description="TOML file: which subjects and roles may use which tools. Unset: every tool, every sender."
    )
    log_level: str = Field("INFO", pattern="^(DEBUG|INFO|WARNING|ERROR)$", description="Lowest level that is logged.")
    log_format: LogFormat = Field("human", description="human, or json: one object per line, for collectors of logs.")
    log_subjects: Literal["plain", "digest"] = Field(
        "plain",
        description="How subjects are logged: as they are, or as digests by the first key of REQUEST_KEYS_FILE.",
    )

    @property
    def subject_as_logged(self) -> Callable[[str], str]:
        """How log lines name a subject."""
        if self.log_subjects == "plain":
            return str
        return lru_cache(1000)(partial(digest_of_subject, self.request_keys))

    @model_validator(mode="after")
    def _can_digest(self) -> Self:
        if self.log_subjects == "digest" and self.request_keys_file is None:
            raise ValueError("LOG_SUBJECTS: digests need a key: set REQUEST_KEYS_FILE, or LOG_SUBJECTS=plain")
        return self


def digest_of_subject(keys: RequestKeys, subject: str) -> str:
    """The digest that stands for a subject in the logs of all services with the same first key: 16 hex digits."""
    return keys.sign_as(b"callstream subject in logs", subject.encode())[:16]


def _secret(secret: SecretStr | None) -> str | None:
    return secret.get_secret_value() if secret else None


def _path(path: Path | None) -> str | None:
    return str(path) if path else None
