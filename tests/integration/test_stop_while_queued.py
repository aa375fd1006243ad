"""A message that waits for its session while its engine shuts down."""

import asyncio
from pathlib import Path

import httpx2
import pytest

from tests.integration.engines import Model, running_engine, settings
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio


async def test_it_is_refused_with_a_problem_document_at_once(tmp_path: Path, redis_url: str, model: Model) -> None:
    model.held.clear()
    configured = settings(tmp_path, redis_url, model.url, shutdown_grace_seconds=10)
    async with httpx2.AsyncClient(timeout=30, trust_env=False) as client:
        async with running_engine(configured) as engine:
            session_id = (await engine.client.post("/v1/sessions")).json()["sessionId"]
            await engine.client.post(f"/v1/sessions/{session_id}/turns", json={"message": "first"})
            body = {"message": "next", "sessionId": session_id, "onBusy": "queue"}
            waiting = asyncio.create_task(client.post(f"{engine.url}/v1/chat", json=body))

            async def queued() -> bool:
                return "dialog_messages_queued 1.0" in (await engine.client.get("/metrics")).text

            await wait_until(queued, what="a message that waits")

            async def ends_first() -> None:
                await waiting
                model.held.set()  # the first turn runs until the message is refused

            ends = asyncio.create_task(ends_first())
        await ends
    answer = waiting.result()
    assert (answer.status_code, answer.json()["code"]) == (503, "ENGINE_STOPPING")
    assert answer.headers["content-type"] == "application/problem+json"
    assert int(answer.headers["retry-after"]) > 0
