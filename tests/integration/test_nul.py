"""U+0000, which PostgreSQL cannot store: what callers, models and tools that send it get, with either database."""

from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.model import storable_json
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, LinkBlock, TextBlock, ToolError, ToolOutcome
from tests.contract.conftest import Bench
from tests.integration.engines import Engine, Model, publish, running_engine, settings
from tests.integration.test_http_problems import JSON, check
from tests.integration.test_http_turns import worker
from tests.marks import promise
from tests.support.engine_stores import DIALECTS
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

__all__ = ["worker"]
ASKED = tool("files__write", {"type": "object"}, approval=ApprovalPolicy.ALWAYS)


@pytest.fixture(params=DIALECTS)
async def engine(
    request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, model: Model
) -> AsyncGenerator[Engine]:
    changes = {"database_url": request.getfixturevalue("postgres_url")} if request.param == "postgres" else {}
    async with running_engine(settings(tmp_path, redis_url, model.url, **changes)) as engine:
        yield engine


@promise("U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database")
async def test_an_id_with_it_is_of_nothing(engine: Engine, subtests: pytest.Subtests) -> None:
    begun = (await engine.chat())[0].data
    turn, conversation = begun["turnId"], f"conversations/{begun['sessionId']}"
    wanted = {"model": "openai:gpt-4.1-mini", "input": "Hi"}
    response = (await engine.client.post("/v1/responses", json=wanted)).json()["id"]
    for method, path, code in (
        ("GET", "sessions/%00/messages", "SESSION_NOT_FOUND"),
        ("DELETE", "sessions/a%00", "SESSION_NOT_FOUND"),
        ("POST", "sessions/a%00b/turns", "SESSION_NOT_FOUND"),
        ("GET", "turns/%00", "TURN_NOT_FOUND"),
        ("GET", "turns/%00/events", "TURN_NOT_FOUND"),
        ("POST", "turns/%00/cancel", "TURN_NOT_FOUND"),
        ("POST", "turns/%00/approvals/call_1", "TURN_NOT_FOUND"),
        ("POST", f"turns/{turn}/approvals/%00", "APPROVAL_NOT_FOUND"),
        ("GET", f"turns/{turn}/tool-calls/%00/text", "CONTENT_NOT_FOUND"),
        ("GET", f"responses/{response}_%00", "RESPONSE_NOT_FOUND"),
        ("DELETE", f"responses/{response}_%00", "RESPONSE_NOT_FOUND"),
        ("POST", f"responses/{response}_%00/cancel", "RESPONSE_NOT_FOUND"),
        ("GET", f"responses/{response}_%00/input_items", "RESPONSE_NOT_FOUND"),
        ("GET", f"{conversation}/items/msg_{'0' * 32}_%00", "ITEM_NOT_FOUND"),
        ("DELETE", f"{conversation}/items/%00_{'0' * 32}_", "ITEM_NOT_FOUND"),
        ("GET", f"turns/{turn}/tool-calls/%00/content/0", "CONTENT_NOT_FOUND"),
    ):
        with subtests.test(path=path):
            body = b'{"decision": "refuse"}' if "approvals" in path else b'{"message": "Hi"}'
            check(await engine.client.request(method, f"/v1/{path}", content=body, headers=JSON), 404, code)


@promise("U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database")
async def test_a_field_with_it_is_refused_and_named(
    engine: Engine, redis_url: str, model: Model, subtests: pytest.Subtests
) -> None:
    for field in ("message", "sessionId", "model", "toolMode"):
        with subtests.test(field=field):
            body = {"message": "Hi"} | {field: "a\0b"}
            check(await engine.client.post("/v1/chat", json=body), 422, "INVALID_REQUEST", field)
    publish(redis_url, ASKED)
    await wait_until(engine.offers, what="the tool")
    model.will_call(ASKED.name)
    approve: dict[str, Any] = {"decision": "approve"}
    async with engine.stream("POST", "/v1/chat", json={"message": "Write"}) as stream:
        async for event in stream:
            if event.data.get("status") == "asked":
                approve |= {"hash": event.data["hash"]}
                break
        path = f"/v1/turns/{stream.response.headers['x-turn-id']}/approvals/call_0"
        for body, code, field in (
            ({"decision": "refuse", "reason": "\0"}, "INVALID_REQUEST", "reason"),
            (approve | {"arguments": {"\0": 1}}, "INVALID_ARGUMENTS", "arguments"),
            (approve | {"arguments": {"a": ["\0"]}}, "INVALID_ARGUMENTS", "arguments"),
        ):
            check(await engine.client.post(path, json=body), 422, code, field)
        assert (await engine.client.post(path, json={"decision": "refuse", "reason": "No"})).status_code == 200
        assert [event async for event in stream][-1].data["reason"] == "stop"


@promise("U+0000 is refused in requests, replaced in what models and tools write, and never an outage of the database")
async def test_what_models_and_tools_write_is_stored_sent_and_shown_with_a_replacement(
    worker: Bench, engine: Engine, model: Model
) -> None:
    function = {"name": "demo__draw", "arguments": '{"a\\u0000": "\\\\u0000 and \\u0000"}'}
    model.replies.append(
        [
            {"content": "Let\0me.", "reasoning_content": "hm\0"},
            {"tool_calls": [{"index": 0, "id": "call\0one", "type": "function", "function": function}]},
        ]
    )
    model.will_say("Bye\0!")
    outcome = ToolOutcome(
        CallState.FAILED,
        (TextBlock("no\0"), LinkBlock("file:///\0", "n\0")),
        error=ToolError(ErrorCode.TOOL_EXECUTION_FAILED, "no\0"),
    )
    async with engine.stream("POST", "/v1/chat", json={"message": "Draw"}) as stream:
        await wait_until(worker.backlog)
        delivery = await worker.deliver()
        await worker.worker.complete(delivery, await worker.run(delivery), outcome)
        events = [event async for event in stream]
    assert delivery.request.arguments == {"a\ufffd": "\\u0000 and \ufffd"}
    assert events[-1].data["reason"] == "stop"
    session = events[0].data["sessionId"]
    text = (await engine.client.get(f"/v1/sessions/{session}/messages")).text
    for shown in (text, str([event.data for event in events]), str(model.asked[1:])):
        assert "\0" not in shown
        assert "\\u0000" not in shown.replace("\\\\u0000", "")
        assert "Let\ufffdme." in shown
        assert "no\ufffd" in shown
    assert "Bye\ufffd!" in text


def test_escapes_are_told_from_escaped_backslashes() -> None:
    written = r'["\u0000", "\\u0000", "\\\u0000", "\u0000\u0000", "\\\\u0000"]'
    assert storable_json(written) == '["\ufffd", "\\\\u0000", "\\\\\ufffd", "\ufffd\ufffd", "\\\\\\\\u0000"]'
