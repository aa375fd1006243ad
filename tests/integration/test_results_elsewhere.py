"""A long result that one engine keeps whole is read on by a model that another engine asks; then it is gone."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from redis import Redis as SyncRedis

from plugins_contract.keys import Keys
from tests.integration.engines import Engine, Event, Model, running_engine, settings
from tests.integration.servers import KINDS
from tests.integration.servers.kinds import LOG
from tests.support.waiting import wait_until
from tests.support.working import working

pytestmark = pytest.mark.anyio
KEYS = Keys()
TOOL = "kinds__give"


@pytest.fixture
async def engines(tmp_path: Path, redis_url: str, model: Model) -> AsyncGenerator[tuple[Engine, Engine]]:
    """Two engines with a file each, and a worker."""
    path = tmp_path / "mcp.json"
    server = {"command": sys.executable, "args": [str(KINDS)], "callstream": {"trust": True}}
    path.write_text(json.dumps({"mcpServers": {"kinds": server}}))
    async with working(redis_url, path), AsyncExitStack() as stack:
        here, there = [
            await stack.enter_async_context(running_engine(settings(tmp_path / name, redis_url, model.url)))
            for name in ("here", "there")
        ]
        for engine in (here, there):
            await wait_until(lambda engine=engine: offered(engine), 20, what="the tool")
        yield here, there


async def offered(engine: Engine) -> bool:
    servers = (await engine.client.get("/v1/tools")).json()["servers"]
    return any(tool["name"] == TOOL for server in servers for tool in server["tools"])


async def long_result(engine: Engine, model: Model) -> tuple[str, dict[str, Any]]:
    """A turn on this engine that gets a long result: its session, and the step with the result."""
    model.will_call_with(TOOL, {"kind": "long"})
    model.will_say("It is long.")
    events = await engine.chat("Read the log")
    [step] = [event.data for event in events if event.data.get("status") == "succeeded"]
    assert step["result"]["truncated"]
    return events[0].data["sessionId"], step


async def read(engine: Engine, model: Model, session_id: str, **arguments: Any) -> tuple[str, list[Event]]:
    """A turn on this engine in which the model calls `read_result`: what that told the model, and the turn."""
    model.will_call_with("read_result", arguments)
    model.will_say("So it is.")
    events = await engine.chat("And then?", sessionId=session_id)
    return model.asked[-1]["messages"][-1]["content"], events


def statuses(events: list[Event]) -> list[str]:
    return [event.data["status"] for event in events if event.data.get("toolName") == "read_result"]


async def test_a_model_reads_on_at_another_engine_in_a_result_of_300_kilobytes(
    engines: tuple[Engine, Engine], model: Model
) -> None:
    here, there = engines
    assert len(LOG) > 300_000
    session_id, step = await long_result(here, model)
    name = step["correlationId"][-8:]
    assert f'call read_result with id "{name}"' in model.asked[-1]["messages"][-1]["content"]

    page, events = await read(there, model, session_id, id=name, offset=LOG.index("entry 12000"), length=30)
    assert "\nentry 12000: needle\n" in page
    assert statuses(events)[-1] == "succeeded"
    found, _ = await read(there, model, session_id, id=name, find="NEEDLE")
    assert f"offset {LOG.index('needle')}: …" in found
    assert (await there.client.get(step["result"]["textUrl"])).text == LOG


async def test_once_the_answer_has_left_redis_the_other_engine_says_so_and_the_first_still_has_it(
    engines: tuple[Engine, Engine], model: Model, redis_url: str
) -> None:
    here, there = engines
    session_id, step = await long_result(here, model)
    name = step["correlationId"][-8:]
    with SyncRedis.from_url(redis_url) as redis:
        assert redis.delete(KEYS.call(step["correlationId"])) == 1

    told, events = await read(there, model, session_id, id=name, offset=20_000)
    assert f"only what you have seen of result {name} is left" in told
    assert f"call {TOOL} again" in told
    assert statuses(events)[-1] == "failed"
    text = (await there.client.get(step["result"]["textUrl"])).text
    assert text.startswith("entry 0: hay\n")
    assert text.endswith("entry 19999: hay\n")
    assert f"of {len(LOG):,} characters left out" in text

    page, _ = await read(here, model, session_id, id=name, offset=LOG.index("entry 12000"), length=30)
    assert "\nentry 12000: needle\n" in page
    assert (await here.client.get(step["result"]["textUrl"])).text == LOG
