"""More tool calls than may wait: what the user of the API receives, and when."""

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.engines import Engine, Model, publish, running_engine, settings
from tests.marks import promise
from tests.support.fakes import tool
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio
CALLS = 5
DEADLINE_MS = 3_000
LIST = tool("files__list", {"type": "object"})


@pytest.fixture
async def engine(tmp_path: Path, redis_url: str, model: Model) -> AsyncGenerator[Engine]:
    """An engine with room for one waiting call, and no worker."""
    publish(redis_url, LIST)
    limits = {"max_backlog": 1, "subject_window": 1, "mcp_request_timeout_ms": DEADLINE_MS}
    async with running_engine(settings(tmp_path, redis_url, model.url, **limits)) as engine:
        await wait_until(engine.offers, what="the tool")
        yield engine


@promise("a call that no worker ran says how long it took, and a refused call of a known tool names its server")
@promise("past the backlog limit calls are refused with OVERLOADED")
async def test_calls_past_the_limit_are_refused_at_once_and_each_is_answered(engine: Engine, model: Model) -> None:
    model.will_call(*[LIST.name] * CALLS)
    began = asyncio.get_running_loop().time()
    refused_after: list[float] = []
    codes: dict[str, str] = {}
    steps: dict[str, dict[str, Any]] = {}
    done: dict[str, Any] = {}
    async with engine.stream("POST", "/v1/chat", json={"message": "List"}) as stream:
        async for event in stream:
            done = event.data
            if event.data.get("type") == "tool" and "error" in event.data:
                codes[event.data["toolCallId"]] = event.data["error"]["code"]
                steps[event.data["correlationId"]] = event.data
                if event.data["error"]["code"] == "OVERLOADED":
                    refused_after.append(asyncio.get_running_loop().time() - began)

    assert sorted(codes.values()) == ["OVERLOADED"] * (CALLS - 1) + ["TIMEOUT"], "the first had room, and no worker"
    assert max(refused_after) < DEADLINE_MS / 1000, "the others need not wait for anything"
    turn = (await engine.client.get(f"/v1/turns/{done['turnId']}")).json()
    assert (done["toolCalls"], turn["toolCalls"]) == (CALLS, CALLS)
    assert {step["server"] for step in steps.values()} == {"files"}
    took = {step["error"]["code"]: step["durationMs"] for step in steps.values()}
    assert 0 < took["OVERLOADED"] < DEADLINE_MS <= took["TIMEOUT"] < DEADLINE_MS + 20_000
    messages = (await engine.client.get(f"/v1/sessions/{turn['sessionId']}/messages")).json()["messages"]
    stored = {call["correlationId"]: call["durationMs"] for message in messages for call in message["toolCalls"]}
    assert stored == {call_id: step["durationMs"] for call_id, step in steps.items()}
