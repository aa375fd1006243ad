"""What an error of Redis means. The clients of `connections` raise `RedisUnavailable` while Redis cannot serve.

Any other error of redis-py says that the command is wrong.
"""

import contextlib
import re
from collections.abc import Generator
from typing import Any

from redis.exceptions import BusyLoadingError, InvalidResponse, NoScriptError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

_LOGIN = frozenset({"NOAUTH", "WRONGPASS"})
_CLUSTER = frozenset({"ASK", "CROSSSLOT", "MOVED"})
NEEDS_A_PERSON = _CLUSTER | {"NOPERM"}
"""These end only when an operator changes the ACL or a setting."""
_NO_DATABASE = "NODB"
"""A code of this module: servers send none for it."""
_OUTAGES = _LOGIN | NEEDS_A_PERSON | {
    _NO_DATABASE, "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "NOSCRIPT", "OOM",
    "READONLY", "TRYAGAIN",
}  # fmt: skip
_IN_PIPELINE = re.compile(r"of pipeline caused error: \(['\"](\w+) ")
# Each server has its own text for these.
_NO_SUCH_DATABASE = re.compile(r"DB index is out of range|SELECT is not allowed")
_NO_PERMISSION_IN_SCRIPT = re.compile(r"ACL failure in script|The user executing the script can't (run|access)")

_CLIENT = re.compile(r"<redis\.(?:asyncio\.)?client\.Redis\(.*?host=([^,)]+),port=(\d+).*?\)>\)>\)>")
"""A client in the text of an error of redis-py's Sentinel."""
_HOST = r"\1:\2"
_REFUSED_SCHEME = re.compile("^Timeout connecting|^Connection closed by server|Connection reset by peer")


class RedisUnavailable(RedisError):  # noqa: N818 -- a state, not a mistake
    """Redis cannot serve now: the same command works when that is over. Its text says why, and holds no secret.

    A full disk answers MISCONF to every write: nothing is wrong with what was sent. So is a refused login, a missing
    right or a server that is not the right one: commands work again when a person has corrected that, and nothing is
    lost until then.
    """

    def __init__(self, text: str, *, code: str = "", not_done: bool = False) -> None:
        """`code` is the first word of the server's answer, such as NOPERM; empty when there was no answer.

        `not_done`: the command was certainly not done, as it was not sent, or the server refused it. Otherwise it is
        unknown whether it was done.
        """
        super().__init__(text)
        self.code = code
        self.not_done = not_done


class _UnknownScriptError(RedisUnavailable, NoScriptError):
    """redis-py's scripts load the script when they get this."""


def translated(answer: Any, *, not_sent: bool = False) -> Any:
    """`answer`, or a `RedisUnavailable` when it is an error that means an outage.

    `not_sent`: it is the error of an attempt to connect, so that no command was sent.
    """
    if not isinstance(answer, Exception) or not (not_sent or _is_outage(answer)):
        return answer
    kind = _UnknownScriptError if isinstance(answer, NoScriptError) else RedisUnavailable
    refused = isinstance(answer, (ResponseError, BusyLoadingError))
    code = code_of(answer) if refused else ""
    unavailable = kind(described(answer), code=code, not_done=not_sent or refused)
    unavailable.__cause__ = answer
    return unavailable


@contextlib.contextmanager
def translating(*, not_sent: bool = False) -> Generator[None]:
    """Raise `RedisUnavailable` for an error of redis-py that means an outage. See `translated`."""
    try:
        yield
    except (RedisError, OSError) as error:
        error = translated(error, not_sent=not_sent)
        raise error from error.__cause__


def was_refused(error: Exception) -> bool:
    """Whether the command was certainly not done: it was not sent, or the server has answered with an error."""
    return error.not_done if isinstance(error, RedisUnavailable) else isinstance(error, ResponseError)


def _is_outage(error: Exception) -> bool:
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, InvalidResponse, OSError)):
        return True
    return isinstance(error, ResponseError) and not isinstance(error, RedisUnavailable) and code_of(error) in _OUTAGES


def described(error: Exception) -> str:
    """What happened, and the setting to check where one is to blame. Holds no secret."""
    text = str(error) or type(error).__name__
    code = code_of(error)
    if text.startswith("No master found"):
        login = "check REDIS_SENTINEL_USERNAME and REDIS_SENTINEL_PASSWORD"
        check = login if "AuthenticationError" in text else "check the hosts and the service in REDIS_URL"
        return f"no Sentinel knows the master: {check}: {_CLIENT.sub(_HOST, text)}"
    if code in _LOGIN:
        return (
            f"it refuses the login, {code}: check REDIS_USERNAME and REDIS_PASSWORD, or the user and password in"
            " REDIS_URL"
        )
    if code == "NOPERM":
        return f"its ACL does not let this user do it, NOPERM: {text}"
    if code in _CLUSTER:
        return (
            f"it is a node of a Redis Cluster and does not hold all our keys, {code}: give REDIS_KEY_PREFIX a hash tag,"
            " such as {callstream}:, and name the node of that slot in REDIS_URL"
        )
    if code == _NO_DATABASE:
        return f"check the number of the database in REDIS_URL: {text}"
    if "AUTH" in text and "without any password configured" in text:
        return "it knows no password: unset REDIS_PASSWORD, or remove the password from REDIS_URL"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"its certificate is not trusted: check REDIS_TLS_CA_FILE and the host in REDIS_URL: {text}"
    if "[SSL" in text or "SSL:" in text:
        return f"TLS fails: check rediss:// in REDIS_URL, REDIS_TLS_CERT_FILE and REDIS_TLS_KEY_FILE: {text}"
    named = text if text.startswith(type(error).__name__) else f"{type(error).__name__}: {text}"
    # A server that expects TLS closes the connection or answers with a TLS alert; one without TLS waits for the end of
    # what it takes for a command.
    if isinstance(error, InvalidResponse) or _REFUSED_SCHEME.search(text):
        return f"{named} (if it stays so: REDIS_URL must begin with rediss:// for TLS and with redis:// without)"
    return named


def code_of(error: Exception) -> str:
    """The first word of the server's answer, which redis-py keeps in one of three places."""
    kept = getattr(error, "status_code", None)
    if kept and kept != "ERR":
        return str(kept)
    text = str(error)
    if _NO_PERMISSION_IN_SCRIPT.search(text):
        return "NOPERM"
    if _NO_SUCH_DATABASE.search(text):
        return _NO_DATABASE
    in_pipeline = _IN_PIPELINE.search(text)
    return in_pipeline[1] if in_pipeline else text.partition(" ")[0]
