"""The people behind the key of a chat page, which says in a signed token who asks."""

import time
from typing import Any

import jwt
import pytest
from pydantic import SecretStr
from starlette.requests import Request

from dialog_engine.chat.waiting_messages import HeldReason
from dialog_engine.errors import UnauthenticatedError
from dialog_engine.http.admission import Admission
from dialog_engine.identity.api_keys import ApiKeys
from dialog_engine.identity.authenticator import Authenticator
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.identity.forwarded_users import ForwardedUsers
from dialog_engine.identity.principal import Principal
from dialog_engine.model import Turn
from plugins_contract.rights import Rights
from tests.marks import promise

SECRET = "s" * 64


def authenticator(*subjects: str, secret: str = SECRET) -> Authenticator:
    """Each subject has a key: its name, twice as often as needed."""
    keys = ApiKeys({subject: SecretStr(key_of(subject)) for subject in subjects})
    return Authenticator(keys, FailedAttempts(0), users=ForwardedUsers(secret) if secret else None)


def key_of(subject: str) -> str:
    return f"a-key-of-{subject}-123456"


def token(sub: Any = "ann", secret: str = SECRET, algorithm: str = "HS256", **claims: Any) -> str:
    return jwt.encode({"sub": sub, "exp": time.time() + 60} | claims, secret, algorithm=algorithm)


async def sender(who: Authenticator, subject: str = "page", user_token: str = "") -> Principal:
    return await who.authenticate(key_of(subject), "address", user_token)


@promise("a user behind a chat page's key is a subject of its own, and never anybody else")
async def test_a_person_behind_a_key_is_a_subject_with_the_roles_and_rights_of_the_key() -> None:
    who = authenticator("page", "ann")
    person, native = await sender(who, user_token=token("a/n n")), await sender(who, "ann")
    assert (person.subject, person.shown_roles) == ("page/a%2Fn%20n", ("user",))
    assert (await sender(who, user_token=token("ann"))).subject != native.subject
    assert await sender(who) == await sender(authenticator("page", secret=""), user_token=token("ann"))
    rights = Rights(b'[[allow]]\ntools = ["*/*"]\n[[deny]]\nsubjects = ["page"]\ntools = ["git/*"]')
    assert not rights.access(person.subject, person.roles).allows("git", "push")
    assert rights.access(native.subject, native.roles).allows("git", "push")


@promise("a user behind a chat page's key is a subject of its own, and never anybody else")
@pytest.mark.parametrize(
    "wrong",
    [
        token(secret="t" * 64),
        token(exp=time.time() - 60),
        token(algorithm="HS512"),
        token(algorithm="none", secret=""),
        jwt.encode({"sub": "ann"}, SECRET, algorithm="HS256"),
        jwt.encode({"exp": time.time() + 60}, SECRET, algorithm="HS256"),
        token(sub=""),
        token(sub="a" * 129),
        "no token",
    ],
    ids=["key", "expired", "HS512", "unsigned", "no exp", "no sub", "empty sub", "long sub", "no token"],
)
async def test_a_token_that_is_not_signed_so_or_has_expired_is_refused(wrong: str) -> None:
    with pytest.raises(UnauthenticatedError, match="X-OpenWebUI-User-Jwt"):
        await sender(authenticator("page"), user_token=wrong)


@promise("a user behind a chat page's key is a subject of its own, and never anybody else")
async def test_a_native_subject_that_could_be_such_a_person_is_refused() -> None:
    who = authenticator("page", "page/ann", "team/ann")
    with pytest.raises(UnauthenticatedError, match="page/ann"):
        await sender(who, "page/ann")
    assert (await sender(who, "team/ann")).subject == "team/ann"


async def test_what_such_a_person_has_sent_begins_later_with_the_rights_of_the_key() -> None:
    who = authenticator("page", "eve")
    person = await sender(who, user_token=token("ann"))
    turn = Turn("t", "s", person.subject, roles=person.roles, key_id=person.key_id, credential=person.credential)
    assert await who.rights(turn) == person.roles
    other = Turn("t", "s", "eve/ann", key_id=person.key_id, credential=person.credential)
    assert await who.rights(other) is HeldReason.CREDENTIAL_REVOKED


async def test_the_end_of_such_a_token_does_not_end_a_stream_that_has_begun_with_it() -> None:
    admission = Admission(authenticator("page"))
    headers = {"authorization": f"Bearer {key_of('page')}", "x-openwebui-user-jwt": token(exp=time.time() - 60)}
    fields = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope: dict[str, Any] = {"type": "http", "path": "/v1/chat", "method": "POST", "headers": fields, "state": {}}
    with pytest.raises(UnauthenticatedError):
        await admission.admit(Request(scope))
    scope["state"]["principal"] = Principal("page/ann")
    assert (await admission.admit(Request(scope))).subject == "page"
