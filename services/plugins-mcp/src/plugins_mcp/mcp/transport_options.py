"""How a server is reached: a class for each transport, in which each field is an option and says how `mcp.json` has it.

`http_client` uses the options of a remote server, `stdio` those of a child process; nothing else reads them.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from types import MappingProxyType
from typing import Any, TypeVar, cast
from urllib.parse import SplitResult, parse_qsl, urlsplit

from plugins_mcp.mcp.fields import FieldError, a_string, names_credential, string_map, strings

T = TypeVar("T")
Fill = Callable[[str, str], str]
"""Replaces the variables in a text. The second argument is the field that the text is from, for errors."""
Pairs = Iterable[tuple[str, str]]

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""A token (RFC 9110)."""


@dataclass(frozen=True, slots=True)
class _Option:
    read: Callable[[Any, str, Fill], Any]
    spellings: tuple[str, ...]
    secrets: Callable[[Any], Pairs]


def _no_secrets(_: Any) -> Pairs:
    return ()


def option(
    read: Callable[[Any, str, Fill], T],
    *,
    spellings: tuple[str, ...] = (),
    secrets: Callable[[T], Pairs] = _no_secrets,
    **declared: Any,
) -> T:
    """A field of a transport that is an option of an entry of `mcp.json`.

    `read` makes its value of the JSON value, of the name in the file and of a function that replaces variables; it
    raises FieldError. `spellings` are its names in the file, otherwise that of the field. `secrets` are what its
    value has that must not be shown, each with its name: one that is named like a credential is removed from answers
    as well. `declared` is passed on to `dataclasses.field`; without a default the option is required.
    """
    return cast("T", field(metadata={"option": _Option(read, spellings, secrets)}, **declared))


def _filled(value: Any, where: str, fill: Fill) -> str:
    return _without_nul(fill(a_string(value, where), where), where)


def _without_nul(text: str, where: str) -> str:
    if "\0" in text:
        raise FieldError(f"{where} has a NUL character, which cannot be passed to a program")
    return text


def _program(value: Any, where: str, fill: Fill) -> str:
    command = _filled(value, where, fill)
    if " " in command.strip() and "/" not in command and "\\" not in command:
        raise FieldError(f"{where} must be the program only: put its arguments into args, one string each")
    return command


def _arguments(value: Any, where: str, fill: Fill) -> tuple[str, ...]:
    return tuple(_without_nul(fill(each, where), f"{where}[{n}]") for n, each in enumerate(strings(value, where)))


def _variables(value: Any, where: str, fill: Fill) -> Mapping[str, str]:
    variables = string_map(value, where)
    for name in variables:
        if not name or "=" in name:
            raise FieldError(f"{where} has a variable {name!r}, which is not a valid name")
    return MappingProxyType(
        {name: _without_nul(fill(text, f"{where}.{name}"), f"{where}.{name}") for name, text in variables.items()}
    )


def _path(value: Any, where: str, fill: Fill) -> str | None:
    return _filled(value, where, fill) if value is not None else None


def _address(value: Any, where: str, fill: Fill) -> str:
    url = fill(a_string(value, where), where)
    parts = _split(url)
    if parts is None or parts.scheme not in ("http", "https") or not parts.hostname:
        raise FieldError(f"{where} must be an address that starts with http:// or https://")
    return url


def _split(url: str) -> SplitResult | None:
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises for an invalid port
    except ValueError:
        return None
    return parts


def _header_fields(value: Any, where: str, fill: Fill) -> Mapping[str, str]:
    filled = {name: fill(text, f"{where}.{name}") for name, text in string_map(value, where).items()}
    for name, text in filled.items():
        if not _HEADER_NAME.fullmatch(name):
            raise FieldError(f"{where} has {name!r}, which is not a valid header name")
        if not text.isprintable() or not text.isascii():
            raise FieldError(f"{where}.{name} has characters that are not allowed in a header, such as a line break")
    return MappingProxyType(filled)


def _of_address(url: str) -> Pairs:
    parts = urlsplit(url)
    return [*parse_qsl(parts.query), ("password", parts.password or ""), ("", parts.query)]


def _of_header_fields(headers: Mapping[str, str]) -> Pairs:
    # "Bearer abc" is secret as a whole, and so is "abc", which others may print without the scheme.
    return [(name, part) for name, text in headers.items() for part in (text, text.rpartition(" ")[2])]


def _of_variables(env: Mapping[str, str]) -> Pairs:
    return env.items()


def _no_strings() -> Mapping[str, str]:
    return MappingProxyType({})


@dataclass(frozen=True)
class Stdio:
    """A child process that is called on its standard streams.

    Its environment is a short list of harmless variables (HOME, PATH, …) plus `env`; nothing else is inherited.
    """

    command: str = option(_program)
    args: tuple[str, ...] = option(_arguments, default=(), repr=False)
    env: Mapping[str, str] = option(_variables, secrets=_of_variables, default_factory=_no_strings, repr=False)
    cwd: str | None = option(_path, default=None)


@dataclass(frozen=True)
class Remote:
    """A server at an address. It may carry a key in its query, so it is kept out of the `repr` as well."""

    url: str = option(_address, spellings=("url", "httpUrl", "serverUrl"), secrets=_of_address, repr=False)
    headers: Mapping[str, str] = option(
        _header_fields, secrets=_of_header_fields, default_factory=_no_strings, repr=False
    )
    ca_file: str | None = option(_path, spellings=("caFile",), default=None)
    """A PEM file with the certificates of authorities that are trusted beside those of the environment."""


class Http(Remote):
    """Streamable HTTP."""


class Sse(Remote):
    """The HTTP+SSE transport of 2024, which old servers still speak."""


Transport = Stdio | Http | Sse
_KINDS: Mapping[str, type[Transport]] = {
    "stdio": Stdio,
    "http": Http,
    "streamable-http": Http,
    "streamable_http": Http,
    "streamableHttp": Http,
    "sse": Sse,
}


def kind_of(entry: Mapping[str, Any]) -> type[Transport]:
    """The transport that an entry of `mcp.json` asks for.

    Raises:
        FieldError: it names none, and has neither a command nor an address.
    """
    for key in ("type", "transport"):
        if key in entry:
            spelled = a_string(entry[key], key)
            if spelled not in _KINDS:
                raise FieldError(f"{key} must be one of {', '.join(_KINDS)}")
            return _KINDS[spelled]
    for kind in (Stdio, Http):
        if any(_spelling(each, entry) for each in fields(kind) if _required(each)):
            return kind
    raise FieldError("needs either command (a local server) or url (a remote one)")


def options_of(kind: type[Transport]) -> frozenset[str]:
    """All names that the options of a transport have in `mcp.json`."""
    return frozenset(name for each in fields(kind) for name in _spellings(each))


def read_transport(kind: type[Transport], entry: Mapping[str, Any], fill: Fill) -> Transport:
    """The transport in an entry of `mcp.json`.

    Raises:
        FieldError: an option is missing or cannot be used; the text names it.
        UndefinedVariableError: `fill` raised it.
    """
    values: dict[str, Any] = {}
    for each in fields(kind):
        spelling = _spelling(each, entry)
        if spelling is not None:
            values[each.name] = _option(each).read(entry[spelling], spelling, fill)
        elif _required(each):
            raise FieldError(f"{each.name} is missing")
    return kind(**values)


def secrets_of(transport: Transport) -> tuple[set[str], set[str]]:
    """The values that must not be shown, and those of them whose name says that they are credentials."""
    pairs = [
        pair for each in fields(transport) for pair in _option(each).secrets(getattr(transport, each.name)) if pair[1]
    ]
    return {value for _, value in pairs}, {value for name, value in pairs if names_credential(name)}


def _option(declared: Field[Any]) -> _Option:
    return declared.metadata["option"]


def _spellings(declared: Field[Any]) -> tuple[str, ...]:
    return _option(declared).spellings or (declared.name,)


def _spelling(declared: Field[Any], entry: Mapping[str, Any]) -> str | None:
    return next((name for name in _spellings(declared) if name in entry), None)


def _required(declared: Field[Any]) -> bool:
    return declared.default is MISSING and declared.default_factory is MISSING
