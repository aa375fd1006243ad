"""Where Redis is, and how to log in there: one value, from which every client is made."""

import re
from dataclasses import dataclass, field
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel")
"""`rediss` is TLS. With `+sentinel` the hosts are Sentinels, which know where the master of a service is."""
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
    """How the server shows who it is, and how we do. Paths of PEM files; without a CA file the system's CAs count."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    check_hostname: bool = True


@dataclass(frozen=True, slots=True)
class RedisAddress:
    """One server, or the Sentinels that know the master of `service`. Shows no password when it is printed."""

    hosts: tuple[tuple[str, int], ...] = ()
    socket_path: str = ""
    """A Unix socket, in the place of `hosts`."""
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
        ValueError: it says what is wrong, and shows nothing that may be a password.
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
        # The library's own words may hold a part of the password.
        raise ValueError(_NOT_A_URL) from None
    if parts.query or parts.fragment:
        raise ValueError("has options after a ? or a # that are not read: see the settings that begin with REDIS_")
    if len(endpoints) > 1 and not sentinels:
        raise ValueError("names several hosts: only redis+sentinel:// may")
    path = unquote(parts.path).strip("/")
    service, _, database = path.partition("/") if sentinels else ("", "", path)
    if sentinels and not service:
        raise ValueError("names no service, such as redis+sentinel://host:26379/mymaster/0")
    tls = Tls() if scheme.startswith("rediss") else None
    return RedisAddress(hosts=endpoints, service=service, database=_database(database), login=login, tls=tls)


class _WrongUrlError(ValueError):
    """What is wrong is said in our own words."""


def _unix(parts: SplitResult, host: str, login: Login) -> RedisAddress:
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    database = options.pop("db", "")
    if options or parts.fragment:
        raise _WrongUrlError("has options after the ? that are not read: ?db=1 is the only one there is")
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
        raise _WrongUrlError("names a database that is no number")
    return int(text or 0)
