"""Bad input over HTTP: each a problem document that names the field; nothing else happens."""

import asyncio
import re
import sqlite3
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dialog_engine.http import turn_views
from dialog_engine.http.requests import MAX_BODY_BYTES
from tests.integration.engines import Engine, Model, Start
from tests.marks import promise

JSON = {"content-type": "application/json"}


@pytest.fixture
async def engine(start: Start) -> AsyncGenerator[Engine]:
    async with start(max_message_chars=1000) as engine:
        yield engine


def check(answer: httpx2.Response, status: int, code: str, field: str | None = None) -> dict[str, Any]:
    """`answer` is a whole problem document. Returns it."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    body = answer.json()
    assert (body["status"], body["code"]) == (status, code)
    assert body["type"] == f"urn:callstream:problem:{code.lower().replace('_', '-')}"
    assert body["title"]
    assert body["detail"]
    if field is not None:
        assert [error["field"] for error in body["errors"]] == [field]
        assert body["errors"][0]["message"]
    return body


CHAT, DECISION = "/v1/chat", "/v1/turns/any/approvals/any"
WRONG_SHAPES: list[tuple[str, object, str, str]] = [
    (CHAT, {}, "message", ""),
    (CHAT, {"message": ""}, "message", ""),
    (CHAT, {"message": " \n\t\u3000"}, "message", ""),
    (CHAT, {"message": None}, "message", ""),
    (CHAT, {"message": 7}, "message", ""),
    (CHAT, {"message": ["Hi"]}, "message", ""),
    (CHAT, {"message": "Hi", "sessionId": 7}, "sessionId", ""),
    (CHAT, {"message": "Hi", "sessionId": ""}, "sessionId", ""),
    (CHAT, {"message": "Hi", "sessionId": "x" * 101}, "sessionId", ""),
    (CHAT, {"message": "Hi", "session_id": "x"}, "session_id", ""),
    (CHAT, {"message": "Hi", "temperature": 1}, "temperature", ""),
    (CHAT, {"message": "Hi", "sessionId": "x", "regenerateOf": "1"}, "message", ""),
    (CHAT, {"sessionId": "x", "parentTurnId": "", "regenerateOf": "1"}, "parentTurnId", ""),
    (CHAT, {"message": "Hi", "sessionId": "x", "parentTurnId": "\0"}, "parentTurnId", ""),
    (CHAT, {"message": "Hi", "sessionId": "x", "parentTurnId": 1}, "parentTurnId", ""),
    (CHAT, [], "body", ""),
    (CHAT, "Hi", "body", ""),
    (CHAT, 7, "body", ""),
    (DECISION, {}, "decision", "required"),
    (DECISION, {"decision": "maybe"}, "decision", "'approve' or 'refuse'"),
    (DECISION, {"decision": "approve"}, "hash", "required"),
    (DECISION, {"decision": "approve", "hash": ""}, "hash", "required"),
    (DECISION, {"decision": "approve", "hash": "h", "reason": "why"}, "reason", "leave it out"),
    (DECISION, {"decision": "approve", "hash": "h", "arguments": []}, "arguments", "dictionary"),
    (DECISION, {"decision": "refuse", "arguments": {}}, "arguments", "leave them out"),
    (DECISION, {"decision": "refuse", "reason": "x" * 1001}, "reason", "1000 characters"),
]


async def test_a_body_of_the_wrong_shape_is_refused_and_its_field_named(
    engine: Engine, subtests: pytest.Subtests
) -> None:
    for path, body, field, said in WRONG_SHAPES:
        with subtests.test(path=path, body=body):
            assert said in check(await engine.client.post(path, json=body), 422, "INVALID_REQUEST", field)["detail"]
    assert (await engine.client.get("/v1/sessions")).json()["sessions"] == []


async def test_a_body_that_is_not_json_or_not_unicode_is_refused(engine: Engine, subtests: pytest.Subtests) -> None:
    for body in (b"{", b"{'message': 'Hi'}", b'{"message": "\xff"}', b'{"message": ' + b"[" * 200_000):
        with subtests.test(body=body[:20]):
            check(await engine.client.post(CHAT, content=body, headers=JSON), 400, "INVALID_JSON", "body")
    check(await engine.client.post(CHAT, headers=JSON), 422, "INVALID_REQUEST", "body")
    for body in (b'{"message": "\\ud83d"}', b'{"message": "Hi", "sessionId": "\\ud83d"}'):
        check(await engine.client.post(CHAT, content=body, headers=JSON), 422, "INVALID_REQUEST")


@promise("a page from elsewhere can do nothing to an engine without keys")
async def test_bodies_other_than_json_are_refused(engine: Engine, subtests: pytest.Subtests) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        with subtests.test(kind=kind):
            headers = {"content-type": kind} if kind else {}
            answer = await engine.client.post("/v1/chat", content=b'{"message": "Hi"}', headers=headers)
            body = check(answer, 415, "UNSUPPORTED_MEDIA_TYPE", "Content-Type")
            assert "application/json" in body["detail"]


async def test_a_message_or_a_body_that_is_too_large_is_refused(engine: Engine) -> None:
    await engine.chat("x" * 1000)
    for path in (CHAT, "/v1/sessions/any/turns"):
        answer = await engine.client.post(path, json={"message": "x" * 1001})
        check(answer, 413, "MESSAGE_TOO_LONG", "message")
    large = b'{"message": "' + b"x" * MAX_BODY_BYTES + b'"}'

    async def in_pieces() -> AsyncGenerator[bytes]:
        for at in range(0, len(large), 65_536):
            yield large[at : at + 65_536]

    for content in (large, in_pieces()):  # with and without a content-length
        check(await engine.client.post(CHAT, content=content, headers=JSON), 413, "BODY_TOO_LARGE", "body")
    await engine.chat("Hi")


async def test_the_longest_message_fits_in_a_body_also_when_escaped(start: Start) -> None:
    async with start(max_message_chars=100_000) as engine:
        escaped = b'{"message": "' + b"\\ud83d\\ude00" * 100_000 + b'"}'
        assert len(escaped) > MAX_BODY_BYTES
        events = await engine.events("POST", "/v1/chat", content=escaped, headers=JSON)
        assert events[-1].name == "done"


async def test_what_does_not_exist_is_answered_with_404(engine: Engine) -> None:
    get, post, delete = engine.client.get, engine.client.post, engine.client.delete
    check(await post("/v1/chat", json={"message": "Hi", "sessionId": "nope"}), 404, "SESSION_NOT_FOUND")
    check(await post("/v1/sessions/nope/turns", json={"message": "Hi"}), 404, "SESSION_NOT_FOUND")
    check(await get("/v1/sessions/nope/messages"), 404, "SESSION_NOT_FOUND")
    check(await get("/v1/sessions/%00%ff/messages"), 404, "SESSION_NOT_FOUND")
    check(await delete("/v1/sessions/nope"), 404, "SESSION_NOT_FOUND")
    check(await get("/v1/turns/nope"), 404, "TURN_NOT_FOUND")
    check(await get("/v1/turns/nope/events"), 404, "TURN_NOT_FOUND")
    check(await post("/v1/turns/nope/cancel"), 404, "TURN_NOT_FOUND")
    check(await get("/v1/turns/nope/tool-calls/nope/content/0"), 404, "TURN_NOT_FOUND")
    check(await get("/v1/turns/nope/tool-calls/nope/text"), 404, "TURN_NOT_FOUND")
    check(await get("/v1/nope"), 404, "NOT_FOUND")
    check(await get("/docs"), 404, "NOT_FOUND")


async def test_an_invalid_cursor_is_refused(engine: Engine, subtests: pytest.Subtests) -> None:
    turn = (await engine.chat())[0].data["turnId"]
    path = f"/v1/turns/{turn}/events"
    for cursor in ("1", "1-", "-1", "a-b", "1-2-3", "0x1-1", "9" * 16 + "-1"):
        with subtests.test(cursor=cursor):
            check(await engine.client.get(path, params={"after": cursor}), 400, "INVALID_CURSOR", "after")
            answer = await engine.client.get(path, headers={"Last-Event-ID": cursor})
            check(answer, 400, "INVALID_CURSOR", "Last-Event-ID")


@promise("an unknown query parameter is refused and named, and HEAD and Allow are right")
async def test_a_method_that_is_not_allowed_is_a_problem_document(engine: Engine) -> None:
    answer = await engine.client.get("/v1/chat")
    check(answer, 405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "POST"
    for path, methods in (
        ("/v1/sessions", "GET, POST, HEAD"),
        ("/v1/me/data", "DELETE, GET, HEAD"),
        ("/", "GET, HEAD"),
    ):
        answer = await engine.client.put(path)
        check(answer, 405, "METHOD_NOT_ALLOWED")
        assert answer.headers["allow"] == methods
    head = await engine.client.head("/v1/chat")
    assert (head.status_code, head.headers["content-type"], head.content) == (405, "application/problem+json", b"")


@promise("an unknown query parameter is refused and named, and HEAD and Allow are right")
async def test_head_is_answered_as_get_is_without_a_body(engine: Engine, model: Model) -> None:
    model.held.clear()
    async with engine.stream("POST", "/v1/chat", json={"message": "Hi"}) as stream:
        turn = (await stream.until("control")).data
        of_turn = f"/v1/turns/{turn['turnId']}"
        [script] = re.findall(r'type="module" src="([^"]+)"', (await engine.client.get("/")).text)
        for path in ("/v1/sessions", "/v1/about", "/healthz", "/openapi.json", "/", script, of_turn):
            get, head = await engine.client.get(path), await engine.client.head(path)
            assert (head.status_code, head.content) == (get.status_code, b""), path
            for name in ("content-type", "content-length"):
                assert head.headers[name] == get.headers[name], path
        check(await engine.client.get("/v1/turns/nope"), 404, "TURN_NOT_FOUND")
        assert (await engine.client.head("/v1/turns/nope")).status_code == 404
        events = await engine.client.head(f"{of_turn}/events")
        assert (events.status_code, events.content) == (200, b"")
        assert events.headers["content-type"].startswith("text/event-stream")
        model.held.set()
        assert [event async for event in stream][-1].name == "done"
    assert "dialog_event_streams 0.0" in (await engine.client.get("/metrics")).text


UNKNOWN_PARAMETERS = [
    ("GET", "/v1/sessions?befor=x", "limit, before"),
    ("GET", "/v1/sessions/nope/messages?befor=1", "limit, before"),
    ("POST", "/v1/sessions?befor", "has none"),
    ("POST", "/v1/chat?befor=1", "has none"),
    ("GET", "/v1/turns/nope/events?befor=1&after=1-1", "after"),
    ("DELETE", "/v1/me/data?befor=1", "has none"),
    ("GET", "/v1/tools?befor=1", "has none"),
    ("GET", "/readyz?befor=1", "has none"),
]


@promise("an unknown query parameter is refused and named, and HEAD and Allow are right")
async def test_a_query_parameter_that_is_not_known_is_refused_and_named(engine: Engine) -> None:
    for method, path, known in UNKNOWN_PARAMETERS:
        content = b'{"message": "Hi"}' if method == "POST" else None
        answer = await engine.client.request(method, path, content=content, headers=JSON)
        assert known in check(answer, 422, "INVALID_REQUEST", "befor")["errors"][0]["message"]


async def test_an_internal_error_reveals_no_details(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise LookupError("a secret")

    monkeypatch.setattr(turn_views, "turn", broken)
    turn = (await engine.chat())[0].data["turnId"]
    answer = await engine.client.get(f"/v1/turns/{turn}")
    check(answer, 500, "INTERNAL_ERROR")
    assert "secret" not in answer.text
    assert (await engine.client.get("/healthz")).status_code == 200


async def test_nothing_is_accepted_while_nothing_can_be_committed(engine: Engine, tmp_path: Path) -> None:
    session = (await engine.client.post("/v1/sessions")).json()["sessionId"]
    other = sqlite3.connect(tmp_path / "engine.sqlite3", isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")  # as a full disk does: the engine can read and not write
        answers = await asyncio.gather(
            engine.client.post("/v1/chat", json={"message": "Hi"}),
            engine.client.post(f"/v1/sessions/{session}/turns", json={"message": "Hi"}),
            engine.client.post("/v1/sessions"),
            engine.client.get("/v1/me/data"),  # which is audited; a broken answer was begun
        )
        ready = await engine.client.get("/readyz")
    finally:
        other.close()
    for answer in answers:
        check(answer, 503, "STORAGE_UNAVAILABLE")
        assert int(answer.headers["retry-after"]) > 0
    assert (ready.status_code, ready.json()["status"]) == (503, "unready")
    assert "cannot be written" in ready.json()["parts"]["storage"]

    assert (await engine.client.get("/readyz")).json()["parts"]["storage"] == "ok"
    assert len((await engine.client.get("/v1/sessions")).json()["sessions"]) == 1
    await engine.chat(sessionId=session)


# --- Who asks ---


@promise("a page from elsewhere can do nothing to an engine without keys")
async def test_without_keys_only_this_machines_own_names_are_served(engine: Engine) -> None:
    for host in ("localhost", "127.0.0.1:8000", "[::1]:8000", "LOCALHOST:1"):
        assert (await engine.client.get("/v1/about", headers={"host": host})).status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1"):
        check(await engine.client.get("/v1/about", headers={"host": host}), 421, "HOST_NOT_ALLOWED", "Host")


@promise("a page from elsewhere can do nothing to an engine without keys")
async def test_without_keys_pages_from_elsewhere_are_not_served(engine: Engine) -> None:
    for host in ("localhost:3000", "127.0.0.1:8000", "[::1]"):
        headers = {"host": host, "origin": f"http://{host}"}
        assert (await engine.client.post("/v1/sessions", headers=headers)).status_code == 201
    assert (await engine.client.post("/v1/sessions", headers={"origin": engine.url})).status_code == 201
    for origin in (
        "https://evil.example",
        "http://127.0.0.1:9",
        "http://localhost:9",
        "http://localhost.evil.example",
        "null",
        "http://10.0.0.1:8000",
        "localhost",
    ):
        check(await engine.client.post("/v1/sessions", headers={"origin": origin}), 403, "ORIGIN_NOT_ALLOWED", "Origin")


async def test_with_keys_every_name_is_served(start: Start) -> None:
    headers = {"host": "chat.example", "origin": "https://chat.example", "authorization": "Bearer ann's key"}
    async with start(api_keys={"ann": "ann's key"}) as engine:
        assert (await engine.client.get("/v1/about", headers=headers)).status_code == 200
