"""Every route of an engine, as a sender who may not use it. The routes are those of the application itself."""

import asyncio
import logging
import socket
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest
from fastapi.routing import iter_route_contexts

from callstream_runtime.logs import HumanFormatter
from dialog_engine.chat.times import TurnTimes
from dialog_engine.http.admission import OPERATORS, PROBES, RESULTS, role_needed
from dialog_engine.http.streams import StreamTimes
from dialog_engine.identity.api_keys import add_key, revoke_key
from dialog_engine.identity.page_sessions import PageSession, PendingSignIn, Seal
from dialog_engine.identity.provider import REFRESH_SECONDS
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Model, Start
from tests.marks import promise
from tests.support.oidc_provider import AUDIENCE, CLIENT_ID, CLIENT_SECRET, OidcProvider, SigningKey
from tests.support.waiting import wait_until

Headers = dict[str, str]
ORIGIN = "http://127.0.0.1"
OPEN = {"/", "/assets/{name}", "/healthz", "/readyz", "/sign-in", "/sign-in/callback"}
"""The routes that need no key. A new one has to be added here as well as in the engine."""


@dataclass(frozen=True, slots=True)
class Place:
    """An engine with keys of every kind, and its provider."""

    engine: Engine
    provider: OidcProvider
    ann: str
    bob: str
    operator: str
    expired: str
    revoked: str
    session_keys: Path


def bearer(credential: str) -> Headers:
    return {"authorization": f"Bearer {credential}"}


@pytest.fixture
def times() -> EngineTimes:
    """Streams are checked more often, and turns not at all. The keys of the provider get old in half a second."""
    return EngineTimes(
        streams=StreamTimes(check=0.1),
        turns=TurnTimes(check=3600),
        provider_now=lambda: time.monotonic() * 2 * REFRESH_SECONDS,
    )


@pytest.fixture
async def place(start: Start, tmp_path: Path) -> AsyncGenerator[Place]:
    keys, session_keys = tmp_path / "keys.json", tmp_path / "session.keys"
    session_keys.write_text("s" * 40)
    ann, bob = (add_key(keys, name, ["user"], None)[1] for name in ("ann", "bob"))
    operator = add_key(keys, "prometheus", ["operator"], None)[1]
    expired = add_key(keys, "ann", ["user"], datetime.now(UTC) - timedelta(seconds=1))[1]
    entry, revoked = add_key(keys, "ann", ["user", "operator"], None)
    revoke_key(keys, entry.id)
    async with (
        OidcProvider().serving() as issuer,
        start(
            api_keys_file=keys,
            failed_keys_per_minute=0,
            oidc_issuer=issuer.issuer,
            oidc_audience=AUDIENCE,
            oidc_client_id=CLIENT_ID,
            oidc_client_secret=CLIENT_SECRET,
            public_url=ORIGIN,
            session_keys_file=session_keys,
        ) as engine,
    ):
        yield Place(engine, issuer, ann, bob, operator, expired, revoked, session_keys)


def routes(engine: Engine) -> list[tuple[str, str]]:
    """Every method and path that the application serves, but those for workers (test_large_results.py)."""
    found = [
        (method, str(route.path))
        for route in iter_route_contexts(engine.app.routes)
        for method in sorted(route.methods or ())
    ]
    described = {
        (method.upper(), path) for path, methods in engine.app.openapi()["paths"].items() for method in methods
    }
    assert described <= {(method, path.replace(":path}", "}")) for method, path in found}
    return [(method, path) for method, path in found if not path.startswith(RESULTS)]


def closed(engine: Engine, role: str | None = None) -> list[tuple[str, str]]:
    """The routes that need a role: any, or this one."""
    needed = [(method, path, role_needed(filled(path))) for method, path in routes(engine)]
    return [(method, path) for method, path, needs in needed if needs is not None and role in (None, needs)]


def filled(path: str, **values: str) -> str:
    """The path with a value for each parameter."""
    for name in (
        "session_id",
        "turn_id",
        "tool_call_id",
        "question_id",
        "correlation_id",
        "number",
        "name",
        "response_id",
        "conversation_id",
        "item_name",
    ):
        path = path.replace("{" + name + ":path}", "{" + name + "}").replace("{" + name + "}", values.get(name, "0"))
    return path


def misused(place: Place, secret: str, algorithm: str) -> Headers:
    """A token that claims the key of the provider, and is signed otherwise."""
    claims = {"iss": place.provider.issuer, "aud": AUDIENCE, "sub": "ann@oidc", "exp": int(time.time()) + 600}
    return bearer(jwt.encode(claims, secret, algorithm, headers={"kid": place.provider.signing.kid}))


def session(place: Place, *, ends_in: float = 60, keys: Path | None = None) -> str:
    """The sealed session of a person who has signed in."""
    return Seal(keys or place.session_keys).seal(
        PageSession("ann@oidc", "Ann", ("user", "operator"), time.time() + ends_in)
    )


def pending(place: Place) -> str:
    return Seal(place.session_keys).seal(PendingSignIn("state", "nonce", "verifier", time.time() + 60))


CREDENTIALS: dict[str, Callable[[Place], Headers]] = {
    "nobody": lambda _: {},
    "an empty key": lambda _: {"authorization": "Bearer"},
    "a wrong key": lambda _: bearer("callstream_" + "a" * 43),
    "the hash of a key": lambda place: bearer("0" * 64),
    "another scheme": lambda place: {"authorization": f"Basic {place.ann}"},
    "an expired key": lambda place: bearer(place.expired),
    "a revoked key": lambda place: bearer(place.revoked),
    "an expired token": lambda place: bearer(place.provider.token(exp=int(time.time()) - 60)),
    "a token that is not valid yet": lambda place: bearer(place.provider.token(nbf=int(time.time()) + 300)),
    "a forged signature": lambda place: bearer(place.provider.token(key=SigningKey.new(place.provider.signing.kid))),
    "an unknown key id": lambda place: bearer(place.provider.token(key=SigningKey.new())),
    "a changed token": lambda place: bearer(changed(place.provider.token())),
    "a foreign issuer": lambda place: bearer(place.provider.token(iss="https://issuer.example")),
    "a foreign audience": lambda place: bearer(place.provider.token(aud="another-api")),
    "an ID token of the page": lambda place: bearer(place.provider.token(aud=CLIENT_ID, nonce="n")),
    "a token of another type": lambda place: bearer(place.provider.token(kind="logout+jwt")),
    "a token without an end": lambda place: bearer(place.provider.token(exp=None)),
    "a token of no subject": lambda place: bearer(place.provider.token(sub=None)),
    "alg none": lambda place: misused(place, "", "none"),
    "HMAC with the public key": lambda place: misused(place, str(place.provider.signing.public()["x"]), "HS256"),
    "a session that has ended": lambda place: cookie(session(place, ends_in=-1)),
    "a session of another key": lambda place: cookie(Seal().seal(PageSession("a", "A", ("user",), time.time() + 60))),
    "a changed session": lambda place: cookie(changed(session(place))),
    "a sign-in as a session": lambda place: cookie(pending(place)),
    # As another host of the same site may send it beside, or in place of, a cookie that begins with __Host-.
    "a session under nearly its name": lambda place: {"cookie": f"\xa0callstream={session(place)}", "origin": ORIGIN},
    "two sessions": lambda place: {"cookie": f"callstream={session(place)}; callstream=x", "origin": ORIGIN},
    "a cookie outside ASCII": lambda place: cookie("\xe9" + session(place)),
    "a key outside ASCII": lambda place: bearer("\xe9" * 20),
    "a session as a key": lambda place: bearer(session(place)),
}
"""What does not prove who sends a request."""


def cookie(value: str) -> Headers:
    return {"cookie": f"callstream={value}", "origin": ORIGIN}


def raw(headers: Headers) -> dict[bytes, bytes]:
    """As the bytes that are sent: not everything is ASCII."""
    return {name.encode(): value.encode("latin-1") for name, value in headers.items()}


def changed(text: str) -> str:
    """One character in the middle is another one."""
    middle = len(text) // 2
    return text[:middle] + ("A" if text[middle] != "A" else "B") + text[middle + 1 :]


TRIED = 5
"""So many credentials are tried at each route. All come in turn, and so each is tried at several routes."""


@promise("no route serves a sender who has not proved who they are, and none shows what belongs to another subject")
async def test_no_route_serves_a_sender_who_has_proved_nothing(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    everywhere, credentials, tried = closed(place.engine), cycle(CREDENTIALS.items()), Counter[str]()
    assert len(everywhere) >= 22
    for method, path in everywhere:
        for name, headers in [("nobody", CREDENTIALS["nobody"]), *islice(credentials, TRIED)]:
            answer = await place.engine.client.request(method, filled(path), headers=raw(headers(place)))
            assert answer.status_code == 401, (name, method, path, answer.text)
            tried[name] += 1
    assert tried.keys() == CREDENTIALS.keys()
    assert min(tried.values()) >= 3
    assert {path for _, path in routes(place.engine)} - {path for _, path in everywhere} == OPEN

    caplog.set_level(logging.INFO, "dialog_engine")
    await place.engine.client.get("/v1/%1b%5b31m%07%e2%80%a8%c2%85%0aforged" + "a" * 3_000)
    record = [each for each in caplog.records if each.message == "request refused"][-1]
    line = HumanFormatter().format(record)
    assert line.isprintable(), "a stranger writes no controls into the log"
    assert len(line) < 500, "a path of 20 kB made a line of 20 kB"


async def test_good_credentials_are_accepted(place: Place) -> None:
    """So that the refusals above mean something."""
    tossed = {"cookie": f"callstream={session(place)}; \xa0callstream=another"}
    good = [bearer(place.ann), bearer(place.provider.token()), cookie(session(place)), tossed]
    answers = [(await place.engine.client.get("/v1/me", headers=raw(headers))).json() for headers in good]
    assert [answer["subject"] for answer in answers] == ["ann", *["ann@oidc"] * 3]


@promise("no route serves a sender who has not proved who they are, and none shows what belongs to another subject")
async def test_a_role_opens_its_own_routes_only(place: Place) -> None:
    for role, key in (("operator", place.ann), ("user", place.operator)):
        for method, path in closed(place.engine, role):
            answer = await place.engine.client.request(method, filled(path), headers=bearer(key))
            assert answer.status_code == 403, (role, method, path)
    for path in OPERATORS:
        assert (await place.engine.client.get(path, headers=bearer(place.operator))).status_code == 200
        assert (await place.engine.client.get(f"{path}%0A", headers=bearer(place.ann))).status_code in (403, 404)


@promise("operators' endpoints are apart from the API")
async def test_readiness_shows_its_parts_to_operators_only(place: Place) -> None:
    for headers in ({}, bearer(place.ann)):
        assert (await place.engine.client.get("/readyz", headers=headers)).json().keys() == {"status"}
    assert "parts" in (await place.engine.client.get("/readyz", headers=bearer(place.operator))).json()
    assert (await place.engine.client.get("/readyz", headers=bearer("wrong"))).status_code == 401


@promise("no route serves a sender who has not proved who they are, and none shows what belongs to another subject")
async def test_no_route_shows_or_changes_what_belongs_to_another_subject(place: Place) -> None:
    client, ann = place.engine.client, bearer(place.ann)
    events = await place.engine.events("POST", "/v1/chat", json={"message": "Hi"}, headers=ann)
    ids = {"session_id": events[0].data["sessionId"], "turn_id": events[0].data["turnId"]}
    before = (await client.get(f"/v1/sessions/{ids['session_id']}/messages", headers=ann)).json()
    hi, leaf = {"message": "Hi"}, {"turnId": ids["turn_id"]}
    bodies: dict[str, Any] = {"POST turns": hi, "PATCH {turn_id}": hi, "PUT leaf": leaf}
    bodies["PATCH {session_id}"] = {"tools": {"servers": ["demo"]}}
    bodies |= {"POST {tool_call_id}": {"decision": "refuse"}, "POST {question_id}": {"action": "decline"}}
    result = {"content": "teal"}
    bodies |= {"POST result": result, "POST tool-results": {"results": [result | {"toolCallId": "call"}]}}
    bodies |= {"POST {conversation_id}": {"metadata": {}}, "POST items": {"items": [{"role": "user", "content": "Hi"}]}}
    ids["conversation_id"] = ids["session_id"]
    named = [(method, path) for method, path in closed(place.engine) if any(f"{{{name}}}" in path for name in ids)]
    others = [bearer(place.bob), bearer(place.provider.token()), cookie(session(place))]
    for method, path in named:
        for headers in others:
            address = filled(path, **ids)
            body = bodies.get(f"{method} {path.rpartition('/')[2]}")
            answer = await client.request(method, address, headers=headers, json=body)
            assert answer.status_code == 404, (method, path, answer.text)
    assert len(named) >= 9
    for headers in others:
        assert (await client.get("/v1/sessions", headers=headers)).json()["sessions"] == []
        assert (await client.get("/v1/me/data", headers=headers)).text == ""
        left: dict[str, Any] = {"sessions": 0, "running": [], "traces": 0}
        assert (await client.delete("/v1/me/data", headers=headers)).json() == left
        chat = {"message": "Hi", "sessionId": ids["session_id"]}
        assert (await client.post("/v1/chat", headers=headers, json=chat)).status_code == 404
    assert (await client.get(f"/v1/sessions/{ids['session_id']}/messages", headers=ann)).json() == before


@promise("operators' endpoints are apart from the API")
async def test_the_operations_port_serves_operators_without_a_key_and_nothing_else(start: Start) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    keys = {"ann": "a-key-of-sixteen-characters"}
    async with start(api_keys=keys, operations_port=port) as engine:
        async with httpx2.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False, verify=False) as operations:
            for method, path in routes(engine):
                answer = await operations.request(method, filled(path), headers={"host": engine.url[7:]})
                served = path in PROBES
                assert (answer.status_code in (200, 503)) == served, (method, path)
                assert answer.status_code in (200, 503, 404)
            assert "parts" in (await operations.get("/readyz")).json()
        for path in OPERATORS:
            answer = await engine.client.get(path, headers={"host": f"127.0.0.1:{port}"})
            assert answer.status_code == 401, "the port counts, and not what the client calls it"


async def test_failed_attempts_are_counted_for_the_clients_of_a_trusted_proxy_only(start: Start) -> None:
    for trusted, codes in (("127.0.0.1", [401, 401]), ("10.0.0.0/8", [401, 429]), ("", [401, 429])):
        async with start(
            api_keys={"ann": "a-key-of-sixteen-characters"}, failed_keys_per_minute=1, forwarded_allow_ips=trusted
        ) as engine:
            for address, code in zip(("203.0.113.1", "203.0.113.2"), codes, strict=True):
                headers = {"x-forwarded-for": address} | bearer("wrong")
                assert (await engine.client.get("/v1/me", headers=headers)).status_code == code, (trusted, address)


@promise("API keys are stored as hashes, expire, and are revoked without a restart")
@pytest.mark.parametrize("kind", ["a key", "a token", "a page session", "a withdrawn signing key"])
async def test_a_stream_ends_with_the_credential_that_opened_it(
    place: Place, model: Model, tmp_path: Path, kind: str
) -> None:
    """Streams went on to the end of the turn."""
    entry, key = add_key(tmp_path / "keys.json", "ann", ["user"], None)
    token = place.provider.token(exp=int(time.time()) - (28 if kind == "a token" else -60))
    headers = {"a key": bearer(key), "a page session": cookie(session(place, ends_in=1.5))}.get(kind, bearer(token))
    model.held.clear()
    try:

        async def accepted() -> bool:
            return (await place.engine.client.get("/v1/me", headers=headers)).status_code == 200

        await wait_until(accepted)
        async with place.engine.stream("POST", "/v1/chat", json={"message": "Hi"}, headers=headers) as stream:
            await stream.until("text")
            revoke_key(tmp_path / "keys.json", entry.id)
            if kind == "a withdrawn signing key":
                place.provider.rotate()
            async with asyncio.timeout(10):
                with pytest.raises(AssertionError, match="ended"):
                    await stream.until("done")
        assert not await accepted()
    finally:
        model.held.set()
