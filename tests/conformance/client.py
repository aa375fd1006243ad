"""What the conformance suite runs as its client: a worker with its server, an engine, and a model that calls its tools.

    python -m tests.conformance.client http://localhost:PORT/mcp

What the server offers is called as a user's turns would call it: each tool in a turn of its own, with the arguments of
the suite's context, or with such as its schema asks for. Questions are answered with their defaults.
"""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.integration.engines import Engine, Model, running_engine, settings
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until
from tests.support.working import working

SERVER = "suite"
SECONDS = 15.0
Json = dict[str, Any]
SAMPLES: Json = {"number": 2.5, "integer": 2, "boolean": True, "string": "text", "array": [], "object": {}}


@asynccontextmanager
async def product(url: str) -> AsyncGenerator[tuple[Engine, Model]]:
    """An engine, a worker whose only server is at `url`, and the model."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        redis = LocalServer(embedded_binary(), folder)
        redis.start()
        config = folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {SERVER: {"url": url}}}))
        try:
            async with (
                Model().serving() as model,
                working(redis.url, config),
                running_engine(settings(folder, redis.url, model.url)) as engine,
            ):
                yield engine, model
        finally:
            redis.stop()


async def tools(engine: Engine) -> list[Json]:
    """What the server offers, once it was listed."""

    async def listed() -> list[Json]:
        servers: list[Json] = (await engine.client.get("/v1/tools")).json()["servers"]
        return [each for each in servers if each["server"] == SERVER and each["state"] == "ready"]

    found: list[Json] = await wait_until(listed, SECONDS, what="the server's state")
    return found[0]["tools"]


async def called(engine: Engine, model: Model, tool: str, arguments: Json) -> None:
    """A turn in which the model calls the tool."""
    model.will_call_with(tool, arguments)
    async with engine.stream("POST", "/v1/chat", json={"message": tool}) as stream:
        turn_id = stream.response.headers["x-turn-id"]
        async for event in stream:
            step = event.data
            if event.name == "control" and step.get("type") == "question" and step.get("status") == "asked":
                path = f"/v1/turns/{turn_id}/questions/{step['questionId']}"
                answer = await engine.client.post(path, json={"action": "accept", "content": sample(step["schema"])})
                print("answered", answer.status_code, answer.text, file=sys.stderr)
            elif event.name == "control" and step.get("status") in ("succeeded", "failed", "unknown", "timeout"):
                print(tool, step["status"], json.dumps(step.get("error")), file=sys.stderr)


def sample(schema: Json) -> Json:
    """A value for each field of an object: its default, or one of its type."""
    fields: Json = schema.get("properties", {})
    return {name: field.get("default", SAMPLES[field.get("type", "string")]) for name, field in fields.items()}


async def run(url: str, context: Json) -> None:
    """Call everything."""
    async with product(url) as (engine, model):
        found = await tools(engine)
        by_name = {each["name"].partition("__")[2]: each for each in found}
        calls = [(each["name"], each["arguments"]) for each in context.get("toolCalls", ())]
        if "json_schema_echo" in by_name:
            calls = [("json_schema_echo", {"schema": by_name["json_schema_2020_12_tool"]["inputSchema"]})]
        for name, arguments in calls or [(name, sample(tool["inputSchema"])) for name, tool in by_name.items()]:
            await called(engine, model, by_name[name]["name"], arguments)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(run(sys.argv[-1], json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")), 60))
