"""Which errors say that Redis cannot serve now, and what a person can do about it."""

import re

from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError
from redis.exceptions import TimeoutError as RedisTimeoutError

_LOGIN = frozenset({"NOAUTH", "WRONGPASS"})
_CLUSTER = frozenset({"ASK", "CROSSSLOT", "MOVED"})
_NO_DATABASE = "NODB"
"""A code of ours: servers have none for it."""
_OUTAGES = _LOGIN | _CLUSTER | {
    _NO_DATABASE, "BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOPERM", "NOREPLICAS", "OOM", "READONLY",
    "TRYAGAIN",
}  # fmt: skip
_IN_PIPELINE = re.compile(r"of pipeline caused error: \(['\"](\w+) ")
# What a script is not allowed to do is told by each server in its own words.
_NO_SUCH_DATABASE = re.compile(r"DB index is out of range|SELECT is not allowed")
_NO_PERMISSION_IN_SCRIPT = re.compile(r"ACL failure in script|The user executing the script can't (run|access)")


def is_outage(error: Exception) -> bool:
    """Whether `error` says that Redis cannot serve now, as opposed to: this command is wrong.

    A full disk answers MISCONF to every write: that is an outage too, and nothing is wrong with what was sent. So is a
    login that is refused, or a server that is not the right one: it works again when a person has put it right, and
    nothing is lost until then.
    """
    if isinstance(error, (RedisConnectionError, RedisTimeoutError, OSError)):
        return True
    return isinstance(error, ResponseError) and _code(error) in _OUTAGES


def needs_a_person(error: Exception) -> bool:
    """Whether the server is well and will never do this, until a person changes its ACL or our settings."""
    return _code(error) in _CLUSTER | {"NOPERM"}


LOGIN_SETTINGS = "REDIS_USERNAME and REDIS_PASSWORD, or what stands for them in REDIS_URL"


def describe_outage(error: Exception, *, login_settings: str = LOGIN_SETTINGS) -> str:
    """The same for people: what happened, and the setting to look at where it is one. Holds no secret."""
    text = str(error) or type(error).__name__
    code = _code(error)
    if code in _LOGIN:
        return f"it refuses the login, {code}: check {login_settings}"
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
        return "it knows no password: unset REDIS_PASSWORD, or take the password out of REDIS_URL"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return f"its certificate is not trusted: check REDIS_TLS_CA_FILE and the host in REDIS_URL: {text}"
    if "[SSL" in text or "SSL:" in text:
        return f"TLS fails: check rediss:// in REDIS_URL, REDIS_TLS_CERT_FILE and REDIS_TLS_KEY_FILE: {text}"
    return text if text.startswith(type(error).__name__) else f"{type(error).__name__}: {text}"


def _code(error: Exception) -> str:
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
