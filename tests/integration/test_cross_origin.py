"""Pages on other origins, as their browsers see the engine."""

import asyncio
import re

import httpx2
import pytest

from dialog_engine.storage.sessions import SqlSessions
from tests.integration.engines import Engine, Start
from tests.integration.test_attacks_http import LAST, LIMITS, serving
from tests.marks import promise

LISTED = "https://app.example"
KEY = "a key of ann that is long"
BEARER = {"authorization": f"Bearer {KEY}"}
ALLOWED, EXPOSED = "access-control-allow-origin", "access-control-expose-headers"


async def preflight(engine: Engine, origin: str, path: str = "/v1/chat") -> httpx2.Response:
    wanted = "authorization,content-type,idempotency-key,last-event-id,x-on-disconnect,x-stainless-retry-count"
    headers = {"origin": origin, "access-control-request-method": "POST", "access-control-request-headers": wanted}
    return await engine.client.request("OPTIONS", path, headers=headers)


@promise("pages on listed origins can use the API from browsers, and no others can")
async def test_a_browser_is_answered_before_it_has_a_key_and_may_send_every_header(start: Start) -> None:
    async with start(api_keys={"ann": KEY}, cors_origins=(LISTED, "http://localhost:3000")) as engine:
        for origin in (LISTED, "http://localhost:3000"):
            answer = await preflight(engine, origin)
            assert answer.status_code == 200
            assert answer.headers[ALLOWED] == origin
            assert "x-stainless-retry-count" in answer.headers["access-control-allow-headers"]
            assert "DELETE" in answer.headers["access-control-allow-methods"]
            assert "access-control-allow-credentials" not in answer.headers
        for origin in (
            "https://app.example:8443",
            "http://app.example",
            "https://app.example.evil.example",
            "null",
            "*",
        ):
            assert ALLOWED not in (await preflight(engine, origin)).headers
        for path in ("/metrics", "/openapi.json", "/sign-in", "/operators/usage", "/"):
            assert ALLOWED not in (await preflight(engine, LISTED, path)).headers, path


@promise("pages on listed origins can use the API from browsers, and no others can")
async def test_refusals_of_every_kind_can_be_read_by_a_listed_page_only(start: Start) -> None:
    async with start(api_keys={"ann": KEY}, cors_origins=(LISTED,), subject_requests_per_minute=3) as engine:

        async def answers(origin: str) -> list[tuple[int, httpx2.Headers]]:
            mine = {**BEARER, "origin": origin}
            asked = [
                await engine.client.get("/v1/me", headers={"origin": origin}),
                await engine.client.post("/v1/chat", content=b"x" * 2_000_000, headers=mine),
                await engine.client.get("/v1/no-such-path", headers=mine),
                await engine.client.get("/v1/turns/none", headers=mine),
                *[await engine.client.get("/v1/me", headers=mine) for _ in range(3)],
            ]
            return [(each.status_code, each.headers) for each in asked]

        listed = await answers(LISTED)
        assert {401, 413, 404, 429} <= {status for status, _ in listed}
        for status, headers in listed:
            assert headers[ALLOWED] == LISTED, status
            assert "retry-after" in headers[EXPOSED].lower()
            assert "x-turn-id" in headers[EXPOSED].lower()
            assert "origin" in headers["vary"].lower()
        assert all(ALLOWED not in headers for _, headers in await answers("https://evil.example"))


@promise("pages on listed origins can use the API from browsers, and no others can")
async def test_an_answer_that_no_route_makes_has_the_header_fields_of_all(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FastAPI makes the answer to an unexpected error outside of all middleware."""

    async def fails(*_: object, **__: object) -> None:
        raise RuntimeError("unexpected")

    async with start(api_keys={"ann": KEY}, cors_origins=(LISTED,)) as engine:
        monkeypatch.setattr(SqlSessions, "create", fails)
        answer = await engine.client.post("/v1/sessions", headers={**BEARER, "origin": LISTED, "x-request-id": "mine"})
    assert answer.status_code == 500
    assert answer.headers[ALLOWED] == LISTED
    assert (answer.headers["x-request-id"], answer.headers["cache-control"]) == ("mine", "no-store")


async def test_the_limits_of_connections_can_be_read_by_a_listed_page_only() -> None:
    async with serving(cors_origins=[LISTED]) as served:
        large = b"GET / HTTP/1.1\r\norigin: %s\r\nx: " + b"a" * 33_000 + b"\r\n\r\n"
        refused = await served.ask(large % LISTED.encode())
        assert f"{ALLOWED}: {LISTED}".encode() in refused
        exposed = next(line for line in refused.split(b"\r\n") if line.startswith(EXPOSED.encode()))
        assert b"x-request-id" in exposed
        assert b"x-should-retry" in exposed
        assert ALLOWED.encode() not in await served.ask(large % b"https://evil.example")
        assert ALLOWED.encode() not in await served.ask(large.replace(b"origin", b"host"))
        kept = [await served.connect() for _ in range(LIMITS.connections_per_address)]
        assert f"{ALLOWED}: *".encode() in await served.ask(b"")  # nothing was read
        for _, writer in kept:
            writer.close()
    async with serving() as served:
        assert ALLOWED.encode() not in await served.ask(large % LISTED.encode())
        assert b"200 OK" in await served.ask(LAST)


async def test_a_refusal_that_ends_a_connection_has_an_id_too() -> None:
    large = b"GET / HTTP/1.1\r\n%sx: " + b"a" * 33_000 + b"\r\n\r\n"
    async with serving() as served:
        assert b"\r\nx-request-id: mine-1\r\n" in await served.ask(large % b"x-request-id: mine-1\r\n")
        assert re.search(rb"\r\nx-request-id: [0-9a-f-]{36}\r\n", await served.ask(large % b'x-request-id: "\r\n'))


async def test_without_a_sign_in_a_listed_page_is_served_as_the_engines_own(start: Start) -> None:
    async with start(cors_origins=("http://localhost:3000",)) as engine:
        created = await engine.client.post("/v1/sessions", headers={"origin": "http://localhost:3000"})
        assert (created.status_code, created.headers[ALLOWED]) == (201, "http://localhost:3000")
        assert (await engine.client.post("/v1/sessions", headers={"origin": LISTED})).status_code == 403


async def test_every_answer_has_an_id_which_is_the_clients_own_if_it_is_harmless(engine: Engine) -> None:
    async def sent(own: str) -> str:
        return (await engine.client.get("/v1/me", headers={"x-request-id": own})).headers["x-request-id"]

    assert await sent("req_7f:3.c-1") == "req_7f:3.c-1"
    for own in ("", "a" * 129, "a b", 'a"b', "<b>"):
        assert re.fullmatch(r"[0-9a-f-]{36}", await sent(own))
    ids = await asyncio.gather(*(sent("") for _ in range(20)))
    assert len(set(ids)) == 20
