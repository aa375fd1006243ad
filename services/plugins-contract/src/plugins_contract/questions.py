"""Questions that an MCP server asks a person in the middle of a call, and the round of the call that answers them.

A server that needs input ends a round of the call with its questions and an opaque state. The next round is a request
of its own, `<correlationId>:<round>`, with the answers and exactly that state: its ledger entry, fence, channel,
deadline and signature are its own. Servers run a state again when it is sent again, so each round but the first is
`once`, whatever the class of the call.
"""

import ipaddress
import re
from collections.abc import Collection, Mapping
from enum import StrEnum
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec

MAX_ROUNDS = 10
"""How often a call may be asked on. A server that asks once more is refused."""
MAX_QUESTIONS = 10
"""The most questions in one round."""
MAX_FIELDS = 50
"""The most fields of a form."""
MAX_MESSAGE = 4_000
"""Characters of the text of a question; the rest is cut off."""
MAX_FORM_BYTES = 64 * 1024
MAX_STATE_BYTES = 256 * 1024

SECRET_WORDS = (
    "password", "passwd", "passphrase", "passcode", "secret", "apikey", "accesskey", "privatekey", "accesstoken",
    "authtoken", "refreshtoken", "bearertoken", "credential", "creditcard", "cardnumber", "cvv", "cvc",
)  # fmt: skip
"""A field whose name or title contains one of these, in any case and without spaces, hyphens and underscores, is taken
for a secret, and so is one that is called `pin`, `otp`, `token` or `ssn` alone (docs/mcp.md)."""
_SECRET_NAMES = frozenset({"pin", "otp", "token", "ssn"})
_SEPARATORS = re.compile(r"[\s_.\-]+")
_FORMATS = ("email", "uri", "date", "date-time")


class QuestionKind(StrEnum):
    """How a person answers."""

    FORM = "form"
    URL = "url"


class ServerQuestion(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One question. `key` is the server's name for it. A form has a `form`, its JSON schema; the other kind a `url`.

    All texts are the server's: data, never markup.
    """

    key: str
    kind: QuestionKind
    message: str
    form: dict[str, Any] | None = None
    url: str | None = None


class InputRequired(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What ended a round: the questions, and the `requestState` that goes back to the server with their answers.

    `holder` is set when the server asked by a request of its own, as before 2026-07-28: the pool of the worker alone
    that keeps the call open, and that the answer must reach (`held.py`).
    """

    questions: tuple[ServerQuestion, ...]
    state: str | None = None
    holder: str = ""


class NextRound(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """What a round after the first brings. `responses` are `inputResponses` of MCP, by the keys of the questions.

    In a sealed request they and the state are sealed with the arguments, and only the number and the `holder`, which is
    that of the round before, are readable.
    """

    number: int
    responses: dict[str, Any] = {}
    state: str | None = None
    holder: str = ""


def round_id(correlation_id: str, number: int) -> str:
    """The id of a round in the ledger and on the wire; `number` counts from 1."""
    return correlation_id if number == 1 else f"{correlation_id}:{number}"


def call_of_round(request_id: str) -> str:
    """The correlation id of the call that a round belongs to."""
    return request_id.partition(":")[0]


def unfit(asked: InputRequired, listed: Collection[str] = ()) -> str | None:
    """Why no person is asked this, in words that follow on "the server"; None when it can be put. `listed`: see
    `unfit_address`."""
    if len(asked.questions) > MAX_QUESTIONS:
        return f"asked {len(asked.questions)} questions at once: {MAX_QUESTIONS} are allowed"
    if asked.state is not None and len(asked.state.encode()) > MAX_STATE_BYTES:
        return f"sent a requestState of more than {MAX_STATE_BYTES} bytes"
    return next((why for each in asked.questions if (why := _unfit(each, listed))), None)


def _unfit(question: ServerQuestion, listed: Collection[str]) -> str | None:
    if question.kind is QuestionKind.URL:
        return unfit_address(question.url or "", listed)
    form = question.form or {}
    if len(msgspec.json.encode(form)) > MAX_FORM_BYTES:
        return f"sent a form of more than {MAX_FORM_BYTES} bytes"
    fields: Any = form.get("properties", {})
    if form.get("type") != "object" or not isinstance(fields, dict):
        return "sent a form that is no object"
    named = cast("dict[str, Any]", fields)
    if len(named) > MAX_FIELDS:
        return f"sent a form of {len(named)} fields: {MAX_FIELDS} are allowed"
    required: Any = form.get("required", [])
    if not isinstance(required, list) or any(each not in named for each in cast("list[Any]", required)):
        return "sent a form that requires a field which it does not have"
    return next((why for name, field in named.items() if (why := _unfit_field(name, field))), None)


def unfit_address(url: str, listed: Collection[str] = ()) -> str | None:
    """Why a person is not sent to this address. It is shown with its host, and never fetched by Callstream.

    `listed` are hosts, each with its port where that is not the usual one, that the operator lets the server name,
    public or not, by https or http.
    """
    try:
        parts = urlsplit(url)
        host, port = (parts.hostname or "").rstrip("."), parts.port
    except ValueError:
        return "named an address that cannot be read"
    named = host if port is None else f"{host}:{port}"
    plain = parts.username is None and len(url) <= 8_000 and url.isprintable()
    if plain and parts.scheme in ("https", "http") and named in listed:
        return None
    if parts.scheme != "https" or not host or not plain:
        return f"named an address that is not https: {url[:200]!r}"
    if host.endswith((".localhost", ".local", ".internal")) or not {".", ":"} & {*host}:
        return f"named an address that is not public: {host}"
    try:
        public = ipaddress.ip_address(host).is_global
    except ValueError:
        public = not re.fullmatch(r"[0-9a-fx.]+", host)  # another way of writing an IPv4 address
    return None if public else f"named an address that is not public: {host}"


def looks_secret(name: str, field: Mapping[str, Any]) -> bool:
    """Whether a field seems to ask for a secret: a heuristic. Secrets are asked for by an address, not by a form."""
    if field.get("format") == "password" or field.get("writeOnly") is True:
        return True
    words = [_SEPARATORS.sub("", str(each)).lower() for each in (name, field.get("title") or "")]
    return any(each in _SECRET_NAMES or any(secret in each for secret in SECRET_WORDS) for each in words)


def _unfit_field(name: str, field: Any) -> str | None:
    if not isinstance(field, dict):
        return f"sent a form whose field {name[:100]!r} has no schema"
    schema = cast("dict[str, Any]", field)
    if looks_secret(name, schema):
        return f"asked for a secret in a form ({name[:100]!r}): it may ask for secrets by an address only"
    kind: Any = schema.get("type")
    fits = {
        "string": lambda: _is_text(schema),
        "number": lambda: _is_number(schema),
        "integer": lambda: _is_number(schema),
        "boolean": lambda: True,
        "array": lambda: choices(schema) is not None,
    }.get(kind if isinstance(kind, str) else "")
    return None if fits and fits() else f"sent a form whose field {name[:100]!r} is not of a kind that forms may have"


def _is_text(schema: Mapping[str, Any]) -> bool:
    lengths = (schema.get(key) for key in ("minLength", "maxLength"))
    offered = "enum" in schema or "oneOf" in schema
    known = schema.get("format") in (None, *_FORMATS) and "pattern" not in schema
    return known and all(map(_is_count, lengths)) and (not offered or choices(schema) is not None)


def _is_number(schema: Mapping[str, Any]) -> bool:
    bounds = (schema.get(key) for key in ("minimum", "maximum"))
    return all(each is None or (isinstance(each, int | float) and not isinstance(each, bool)) for each in bounds)


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and value >= 0)


def choices(schema: Mapping[str, Any]) -> list[str] | None:
    """The values that a field offers: of one choice, or in an array of several. None when it offers none."""
    if schema.get("type") == "array":
        items: Any = schema.get("items")
        counts = (schema.get(key) for key in ("minItems", "maxItems"))
        return (
            choices(cast("dict[str, Any]", items)) if isinstance(items, dict) and all(map(_is_count, counts)) else None
        )
    listed: Any = schema.get("enum")
    titled: Any = schema.get("oneOf", schema.get("anyOf"))
    if isinstance(titled, list):
        rows = cast("list[Any]", titled)
        listed = [cast("dict[str, Any]", each).get("const") if isinstance(each, dict) else None for each in rows]
    values = cast("list[Any]", listed) if isinstance(listed, list) else []
    return cast("list[str]", values) if values and all(isinstance(each, str) for each in values) else None
