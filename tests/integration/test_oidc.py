"""Tokens of a provider whose keys change, and people who sign in on the page."""

import asyncio
import gzip
import sqlite3
import time
import tracemalloc
from collections.abc import AsyncGenerator, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dialog_engine.errors import IdentityProviderError, TooManyAttemptsError, UnauthenticatedError
from dialog_engine.http.sign_in_routes import EXCHANGES_PER_MINUTE
from dialog_engine.identity.api_keys import ApiKeys
from dialog_engine.identity.authenticator import Authenticator
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.identity.provider import ASK_AGAIN_SECONDS, METADATA_SECONDS, REFRESH_SECONDS, IdentityProvider
from dialog_engine.identity.tokens import MAX_NAME, MAX_ROLES, RoleRule, TokenVerifier
from dialog_engine.settings import Settings
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.marks import promise
from tests.support.hand_clock import HandClock
from tests.support.oidc_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, OidcProvider, SigningKey

RULE = RoleRule("roles", "operator")


class Api:
    """An authenticator that accepts tokens, on a clock of its own."""

    def __init__(self, issuer: str) -> None:
        self.clock = HandClock()
        self.provider = IdentityProvider(issuer, now=self.clock)
        tokens = TokenVerifier(self.provider, AUDIENCE, RULE)
        self.authenticator = Authenticator(ApiKeys({}), FailedAttempts(0), tokens)

    async def subject(self, token: str) -> str:
        """The subject of a request with this token; empty if it is refused."""
        try:
            return (await self.authenticator.authenticate(token, "10.0.0.1")).subject
        except UnauthenticatedError:
            return ""


@pytest.fixture
async def oidc() -> AsyncGenerator[OidcProvider]:
    async with OidcProvider().serving() as provider:
        yield provider


@pytest.fixture
async def api(oidc: OidcProvider) -> AsyncGenerator[Api]:
    api = Api(oidc.issuer)
    yield api
    await api.provider.aclose()


@promise("tokens of an OpenID Connect provider are accepted while its keys rotate")
async def test_a_new_key_of_the_provider_is_fetched_when_its_first_token_arrives(oidc: OidcProvider, api: Api) -> None:
    for requests in (1, 2):
        token = oidc.token()
        assert await asyncio.gather(*(api.subject(token) for _ in range(20))) == ["ann@oidc"] * 20
        assert oidc.key_requests == requests
        oidc.rotate()
        api.clock.now += ASK_AGAIN_SECONDS


@promise("U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database")
async def test_a_subject_that_no_database_can_store_is_nobody(oidc: OidcProvider, api: Api) -> None:
    for subject in ("ann\0", "ann\ud800", "a" * 256):
        assert await api.subject(oidc.token(sub=subject)) == ""
    assert await api.subject(oidc.token(sub="ann\u0001")) == "ann\u0001"


async def test_a_name_of_half_a_character_can_be_shown_and_roles_that_have_one_do_not_count(
    oidc: OidcProvider, api: Api
) -> None:
    """They were 500: a person can choose their own name."""
    token = oidc.token(name="Ann \ud800" + "n" * 10_000, roles=["staff", "a\udfff"])
    principal = await api.authenticator.authenticate(token, "")
    assert principal.name == "Ann ?" + "n" * (MAX_NAME - 5)
    assert principal.roles == ("user", "staff")


@promise("tokens of an OpenID Connect provider are accepted while its keys rotate")
async def test_tokens_with_unknown_keys_cause_one_request_in_some_seconds(oidc: OidcProvider, api: Api) -> None:
    assert await api.subject(oidc.token()) == "ann@oidc"
    for _ in range(20):
        assert await api.subject(oidc.token(key=SigningKey.new())) == ""
    assert oidc.key_requests == 1
    api.clock.now += ASK_AGAIN_SECONDS
    for _ in range(20):
        assert await api.subject(oidc.token(key=SigningKey.new())) == ""
    assert oidc.key_requests == 2


@promise("tokens of an OpenID Connect provider are accepted while its keys rotate")
async def test_known_keys_stay_in_use_while_the_provider_is_away_and_until_it_withdraws_them(
    oidc: OidcProvider, api: Api
) -> None:
    token = oidc.token(iat=1)
    assert await api.subject(token) == "ann@oidc"
    oidc.available = False
    api.clock.now += REFRESH_SECONDS
    assert await api.subject(token) == "ann@oidc"
    oidc.available = True
    oidc.rotate()
    api.clock.now += REFRESH_SECONDS
    assert await api.subject(token) == "", "it was accepted before"


async def test_what_a_token_began_ends_with_its_signing_key_and_not_while_the_provider_is_away(
    oidc: OidcProvider, api: Api
) -> None:
    began = (await api.authenticator.authenticate(oidc.token(), "10.0.0.1")).credential
    assert not await api.authenticator.revoked(began)
    oidc.rotate()
    oidc.available = False
    api.clock.now += REFRESH_SECONDS
    assert not await api.authenticator.revoked(began)
    later = Api(oidc.issuer)
    assert not await later.authenticator.revoked(began), "an engine that knows no key yet"
    assert not await api.authenticator.revoked(f"token:{oidc.signing.kid}"), "one that does not know the newest key"
    oidc.available = True
    for each in (api, later):
        each.clock.now += ASK_AGAIN_SECONDS
        assert await each.authenticator.revoked(began)
    await later.provider.aclose()


async def test_without_any_key_a_token_is_neither_accepted_nor_called_wrong(oidc: OidcProvider, api: Api) -> None:
    oidc.available = False
    with pytest.raises(IdentityProviderError):
        await api.subject(oidc.token())
    oidc.available = True
    api.clock.now += ASK_AGAIN_SECONDS
    assert await api.subject(oidc.token()) == "ann@oidc"


async def test_valid_tokens_are_served_from_an_address_that_fails(oidc: OidcProvider, api: Api) -> None:
    api.authenticator = Authenticator(ApiKeys({}), FailedAttempts(10), TokenVerifier(api.provider, AUDIENCE, RULE))
    for _ in range(10):
        assert await api.subject("a wrong key") == ""
    with pytest.raises(TooManyAttemptsError):
        await api.subject(oidc.token(key=SigningKey.new(oidc.signing.kid)))
    assert [await api.subject(oidc.token(iat=n)) for n in range(11)] == ["ann@oidc"] * 11


async def test_metadata_is_read_again_daily_and_a_provider_that_is_away_is_asked_every_ten_seconds(
    oidc: OidcProvider, api: Api
) -> None:
    oidc.available = False
    for _ in range(200):
        with pytest.raises(IdentityProviderError):
            await api.provider.metadata()
    assert oidc.requests == 1
    oidc.available = True
    api.clock.now += ASK_AGAIN_SECONDS
    await asyncio.gather(*(api.provider.metadata() for _ in range(200)))
    assert oidc.requests == 2
    api.clock.now += METADATA_SECONDS
    oidc.available = False
    assert (await api.provider.metadata()).issuer == oidc.issuer
    oidc.available, oidc.token_path = True, "/new-token"
    api.clock.now += ASK_AGAIN_SECONDS
    assert (await api.provider.metadata()).token_endpoint.endswith("/new-token")


@pytest.mark.parametrize(
    "other",
    [
        {"kid": ["a"]},
        {"alg": "none"},
        {"kty": "oct", "k": None},
        # A 16,384-bit private key without its primes, which were looked for: 7 s of the event loop.
        {"kty": "RSA", "n": "B" * 2730, "d": "B" * 2730, "e": "AQAB", "alg": "RS256"},
    ],
)
async def test_keys_that_cannot_be_used_are_left_out(oidc: OidcProvider, api: Api, other: dict[str, Any]) -> None:
    """They raised TypeError, NotImplementedError and KeyError, for every request with a token."""
    oidc.published.append(oidc.signing.public() | {"kid": "other"} | other)
    spent = time.thread_time()
    assert await api.subject(oidc.token()) == "ann@oidc"
    assert time.thread_time() - spent < 2


@pytest.mark.parametrize(
    "keys", ["http://a:b:c", "http://[::", "http://a\0b/", "http://a/" + "a" * 100_000, "javascript:"]
)
async def test_an_address_of_keys_that_is_none_makes_the_provider_unavailable(
    oidc: OidcProvider, api: Api, keys: str
) -> None:
    oidc.keys_at = keys
    with pytest.raises(IdentityProviderError) as refused:
        await api.subject(oidc.token())
    assert len(str(refused.value)) < 500
    assert str(refused.value).isprintable()


async def test_metadata_of_another_issuer_is_refused(oidc: OidcProvider) -> None:
    provider = IdentityProvider(f"{oidc.issuer}/")
    with pytest.raises(IdentityProviderError, match="the provider there is"):
        await provider.metadata()
    await provider.aclose()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (lambda: b'{"keys":' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}),
        (lambda: gzip.compress(bytes(100_000_000), 1), {"content-encoding": "gzip"}),
    ],
    ids=["nested deeply", "compressed zeros"],
)
async def test_a_hostile_answer_of_the_provider_is_refused_in_bounded_memory(
    oidc: OidcProvider, api: Api, body: Callable[[], bytes], headers: dict[str, str]
) -> None:
    oidc.answer = body(), headers
    tracemalloc.start()
    try:
        with pytest.raises(IdentityProviderError):
            await api.subject(oidc.token())
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("rule", "claims", "roles"),
    [
        (RULE, {}, ("user",)),
        (RULE, {"roles": ["staff", 7, None, "staff"]}, ("user", "staff")),
        (RULE, {"roles": "staff admin"}, ("user", "staff", "admin")),
        (RULE, {"roles": {"staff": True}}, ("user",)),
        (RULE, {"roles": ["operator", "user"]}, ("user", "operator")),
        (RoleRule("realm_access.roles", "x"), {"realm_access": {"roles": ["staff"]}}, ("user", "staff")),
        (RoleRule("https://a.example/roles", "x"), {"https://a.example/roles": ["staff"]}, ("user", "staff")),
        (RoleRule("a.b", "x"), {"a": "text"}, ("user",)),
        (RoleRule("roles", "admins"), {"roles": ["operator"]}, ("user",)),
        (RoleRule("roles", "admins"), {"roles": ["admins"]}, ("user", "operator", "admins")),
    ],
)
def test_roles_are_read_from_a_claim(rule: RoleRule, claims: dict[str, Any], roles: tuple[str, ...]) -> None:
    assert rule.roles(claims) == roles


def test_the_number_of_roles_is_bounded() -> None:
    assert len(RULE.roles({"roles": [str(n) for n in range(10_000)]})) == MAX_ROLES + 1


# --- People on the page ---


@pytest.fixture
def configured(tmp_path: Path, redis_url: str, model: Model, oidc: OidcProvider) -> Settings:
    options = {"oidc_issuer": oidc.issuer, "oidc_client_id": CLIENT_ID, "oidc_client_secret": CLIENT_SECRET}
    return settings(tmp_path, redis_url, model.url, public_url="http://localhost:8000", **options)


@pytest.fixture
async def engine(configured: Settings) -> AsyncGenerator[Engine]:
    async with running_engine(configured) as engine:
        yield engine


async def sent_back(engine: Engine) -> str:
    """Begin a sign-in, and let the provider agree. Returns the path to which it sends the browser back."""
    begun = await engine.client.get("/sign-in")
    assert begun.status_code == 303
    async with httpx2.AsyncClient(trust_env=False, verify=False) as browser:
        answer = await browser.get(begun.headers["location"])
    assert answer.headers["location"].startswith("http://localhost:8000/sign-in/callback?")
    return answer.headers["location"].removeprefix("http://localhost:8000")


OWN = {"origin": "http://localhost:8000"}


def audited(folder: Path) -> list[tuple[str, str, str]]:
    """Who did what with which credential, as the store of the engine has it."""
    with closing(sqlite3.connect(folder / "engine.sqlite3")) as store:
        return store.execute("SELECT action, subject, key_id FROM audit ORDER BY seq").fetchall()


@promise("people sign in on the page with PKCE, and only the page uses their session")
async def test_a_person_signs_in_chats_and_signs_out(engine: Engine, tmp_path: Path) -> None:
    refused = await engine.client.get("/v1/me")
    assert refused.status_code == 401
    assert refused.json()["signIn"] == "/sign-in"
    finished = await engine.client.get(await sent_back(engine))
    assert (finished.status_code, finished.headers["location"]) == (303, "/")
    cookies = [line.lower() for line in finished.headers.get_list("set-cookie") if line.startswith("callstream=")]
    assert len(cookies) == 1
    assert "httponly" in cookies[0]
    assert "samesite=lax" in cookies[0]
    assert (await engine.client.get("/v1/me")).json() == {
        "subject": "ann@oidc",
        "name": "Ann of OIDC",
        "roles": ["user"],
    }
    assert (await engine.events("POST", "/v1/chat", json={"message": "Hi"}, headers=OWN))[-1].name == "done"
    assert (await engine.client.post("/sign-out", headers=OWN)).status_code == 204
    assert (await engine.client.get("/v1/me")).status_code == 401
    recorded = audited(tmp_path)
    assert ("sign_in", "ann@oidc", "page") in recorded
    assert ("turn.started", "ann@oidc", "page") in recorded
    assert ("sign_out", "ann@oidc", "page") in recorded


@promise("people sign in on the page with PKCE, and only the page uses their session")
async def test_requests_of_other_pages_with_the_cookie_are_refused(engine: Engine) -> None:
    await engine.client.get(await sent_back(engine))
    for headers, code in (
        ({}, 403),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "https://chat.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "cross-site", **OWN}, 403),
        ({"sec-fetch-site": "same-site", **OWN}, 403),
        ({"sec-fetch-site": "none"}, 403),
        ({"sec-fetch-site": "same-origin"}, 201),
        (OWN, 201),
    ):
        assert (await engine.client.post("/v1/sessions", headers=headers)).status_code == code, headers
    for method, path in (("DELETE", "/v1/me/data"), ("POST", "/sign-out"), ("POST", "/v1/chat")):
        assert (await engine.client.request(method, path)).status_code == 403


@promise("people sign in on the page with PKCE, and only the page uses their session")
async def test_a_page_on_a_listed_origin_cannot_use_the_cookie(configured: Settings) -> None:
    listed = {"origin": "https://app.example"}
    http = configured.http.model_copy(update={"cors_origins": ("https://app.example",)})
    async with running_engine(configured.model_copy(update={"http": http})) as engine:
        await engine.client.get(await sent_back(engine))
        for more in ({}, {"sec-fetch-site": "same-site"}, {"sec-fetch-site": "cross-site"}):
            answer = await engine.client.post("/v1/sessions", headers={**listed, **more})
            assert (answer.status_code, answer.json()["code"]) == (403, "FORBIDDEN"), more
        # A browser keeps from the page what a request with a cookie was answered, unless that has a field more.
        read = await engine.client.get("/v1/me", headers=listed)
        assert read.headers["access-control-allow-origin"] == "https://app.example"
        assert "access-control-allow-credentials" not in read.headers


@promise("people sign in on the page with PKCE, and only the page uses their session")
async def test_an_answer_that_this_browser_did_not_ask_for_signs_nobody_in(engine: Engine) -> None:
    """A page of an attacker that sends the victim's browser to the callback with the attacker's own code."""
    path = await sent_back(engine)
    other = await sent_back(engine)  # replaces the cookie of the first one
    for wrong in (path, other.replace("state=", "state=x"), other.replace("code=", "code=x"), "/sign-in/callback"):
        answer = await engine.client.get(wrong)
        assert answer.status_code in (401, 503), wrong
        assert not [line for line in answer.headers.get_list("set-cookie") if line.startswith("callstream=")]
    engine.client.cookies.clear()
    assert (await engine.client.get(other)).status_code == 401
    assert (await engine.client.get("/v1/me")).status_code == 401


async def test_a_code_is_used_once_and_comes_from_the_issuer(engine: Engine, oidc: OidcProvider) -> None:
    oidc.person |= {"aud": [CLIENT_ID, "another client"], "azp": CLIENT_ID, "typ": "ID"}
    path = await sent_back(engine)
    pending = dict(engine.client.cookies)
    for answer, code in ((path.partition("&iss=")[0] + "&iss=https://issuer.example", 401), (path, 303), (path, 401)):
        engine.client.cookies.clear()
        engine.client.cookies.update(pending)
        assert (await engine.client.get(answer)).status_code == code


@pytest.mark.parametrize(
    "claims",
    [
        {"azp": "another client"},
        {"aud": [CLIENT_ID, "another client"]},
        {"typ": "Logout"},
        {"typ": "Bearer"},
        {"nonce": "another"},
        {"nonce": None},
        {"aud": "another client"},
        {"iss": "https://issuer.example"},
        {"exp": 1},
        {"sub": None},
    ],
    ids=str,
)
async def test_an_id_token_that_is_not_for_this_sign_in_is_refused(
    engine: Engine, oidc: OidcProvider, claims: dict[str, Any]
) -> None:
    oidc.person |= claims
    answer = await engine.client.get(await sent_back(engine))
    assert answer.status_code == 401
    assert (await engine.client.get("/v1/me")).status_code == 401


async def test_a_flood_of_sign_ins_hardly_reaches_the_provider(engine: Engine, oidc: OidcProvider) -> None:
    """200 requests made 200 requests."""
    path = await sent_back(engine)
    await engine.client.get("/v1/me", headers={"authorization": "Bearer x.y.z"})
    before = oidc.requests
    answers = await asyncio.gather(*(engine.client.get("/sign-in") for _ in range(200)))
    assert {answer.status_code for answer in answers} == {303}
    assert oidc.requests == before
    wrong = path.replace("code=", "code=x")
    assert (await engine.client.get(wrong, headers={"cookie": "x"})).status_code == 401
    assert oidc.requests == before
    begun = await sent_back(engine)
    before = oidc.requests
    answers = await asyncio.gather(*(engine.client.get(begun.replace("code=", "code=x")) for _ in range(200)))
    assert {answer.status_code for answer in answers} == {401, 429}
    assert oidc.requests - before <= EXCHANGES_PER_MINUTE
    assert (await engine.client.get("/sign-in")).status_code == 429


async def test_without_the_provider_signing_in_is_unavailable_and_says_so(engine: Engine, oidc: OidcProvider) -> None:
    oidc.available = False
    answer = await engine.client.get("/sign-in")
    assert answer.status_code == 503
    assert answer.json()["code"] == "IDENTITY_PROVIDER_UNAVAILABLE"
    assert CLIENT_SECRET not in answer.text
    answer = await engine.client.get("/sign-in", headers={"accept": "text/html,*/*;q=0.8"})
    assert answer.status_code == 303
    assert answer.headers["location"] == "/?sign-in-refused=IDENTITY_PROVIDER_UNAVAILABLE"


async def test_on_https_the_cookie_is_secure_and_of_this_host_only(
    tmp_path: Path, redis_url: str, model: Model, oidc: OidcProvider
) -> None:
    options = {"oidc_issuer": oidc.issuer, "oidc_client_id": CLIENT_ID, "public_url": "https://chat.example"}
    async with running_engine(settings(tmp_path, redis_url, model.url, **options)) as engine:
        pending = (await engine.client.get("/sign-in")).headers["set-cookie"]
        assert pending.startswith("__Host-callstream-sign-in=")
        assert "; Secure" in pending
        assert (await engine.client.get("/v1/me", headers={"cookie": "callstream=x"})).status_code == 401
