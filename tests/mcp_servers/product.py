"""One server under the whole product: Redis, a worker and an engine in this process, and a model that calls tools."""

import asyncio
import json
import signal
import tempfile
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from tests.integration.engines import Engine, Event, Model, running_engine, settings
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until
from tests.support.working import working

START = 60.0
"""Seconds in which a server must be ready, on a busy machine."""
TERMINAL = frozenset({"succeeded", "failed", "timeout", "cancelled", "unknown", "refused"})
Json = dict[str, Any]


class RefusedError(Exception):
    """What was expected of a server, or of the product with it, did not happen."""


@dataclass
class Tried:
    """A running product with one server."""

    engine: Engine
    model: Model
    server: str
    remote: "Remote | None"
    folder: Path
    session_id: str = ""
    catalog: Json = field(default_factory=dict[str, Any])

    async def ready(self) -> None:
        """Wait for its catalog."""

        async def listed() -> bool:
            servers: list[Json] = (await self.engine.client.get("/v1/tools")).json()["servers"]
            found = [each for each in servers if each["server"] == self.server and each["state"] == "ready"]
            self.catalog = found[0] if found else {}
            return bool(found)

        await wait_until(listed, START, what=f"{self.server} to be ready")

    def offered(self, tool: str) -> str:
        """The name by which a model calls it."""
        for each in self.catalog["tools"]:
            if each["tool"] in (tool, f"{self.server}/{tool}"):
                return each["name"]
        raise RefusedError(f"{tool} is not offered")

    async def call(
        self, tool: str, arguments: Json, on_step: Callable[[Json, str], Any] | None = None, seconds: float = 90.0
    ) -> tuple[Json, list[Json]]:
        """A turn whose model calls the tool: its last step, and all of them. Questions are accepted."""
        self.model.replies.clear()
        self.model.will_call_with(self.offered(tool), arguments)
        steps: list[Json] = []
        body = {"message": tool} | ({"sessionId": self.session_id} if self.session_id else {})
        async with asyncio.timeout(seconds), self.engine.stream("POST", "/v1/chat", json=body) as stream:
            turn_id = stream.response.headers["x-turn-id"]
            async for event in stream:
                await self._step(event, turn_id, steps, on_step)
        ends = [step for step in steps if step["type"] == "tool" and step["status"] in TERMINAL]
        if not ends:
            raise RefusedError("the call has no end")
        return ends[-1], steps

    async def _step(
        self, event: Event, turn_id: str, steps: list[Json], on_step: Callable[[Json, str], Any] | None
    ) -> None:
        if event.name != "control":
            return
        step = event.data
        steps.append(step)
        self.session_id = step.get("sessionId") or self.session_id
        if step["type"] == "question" and step["status"] == "asked":
            content = {"content": sample(step["schema"])} if step.get("schema") else {}
            await self._post(f"/v1/turns/{turn_id}/questions/{step['questionId']}", {"action": "accept"} | content)
        elif on_step is not None:
            await on_step(step, turn_id)

    async def _post(self, path: str, body: Json) -> None:
        answer = await self.engine.client.post(path, json=body)
        if answer.is_error:
            raise RefusedError(f"{path}: {answer.text}")

    def processes(self) -> list[psutil.Process]:
        """Those of the server: what the worker has started, or the remote one."""
        if self.remote is not None:
            return [self.remote.process, *self.remote.process.children(recursive=True)]
        mine = psutil.Process().children(recursive=True)
        return [each for each in mine if each.is_running() and each.name() not in ("valkey-server", "redis-server")]

    def signal(self, number: int) -> None:
        """Send a signal to all of them."""
        for each in self.processes():
            with suppress(psutil.NoSuchProcess):
                each.send_signal(number)


@dataclass
class Remote:
    """A server by HTTP, which the worker does not start."""

    command: list[str]
    environment: dict[str, str]
    process: psutil.Popen | Any = None

    def start(self, folder: Path) -> None:
        """Start it, again after a kill."""
        with (folder / "remote.log").open("ab") as log:
            self.process = psutil.Popen(
                self.command, env=self.environment, cwd=folder, stdout=log, stderr=log, start_new_session=True
            )

    def stop(self) -> None:
        """End it, and what it has started."""
        for each in [*self.process.children(recursive=True), self.process]:
            with suppress(psutil.NoSuchProcess):
                each.send_signal(signal.SIGCONT)
                each.kill()
        self.process.wait()


def sample(schema: Json) -> Json:
    """A value for each field of an object: its default, or the first that fits."""
    return {name: _value(field) for name, field in schema.get("properties", {}).items()}


def _value(field: Json) -> Any:
    if "default" in field:
        return field["default"]
    kinds: list[Json] = field.get("oneOf") or field.get("anyOf") or []
    if choices := field.get("enum") or [each["const"] for each in kinds if "const" in each]:
        return choices[0]
    if kinds:
        return _value(kinds[0])
    if field.get("type") == "array":
        return [_value(field["items"] | {"type": "string"})] if field.get("minItems") else []
    texts = {"email": "a@example.org", "uri": "https://example.org/", "date": "2026-01-02"}
    texts["date-time"] = "2026-01-02T03:04:05Z"
    by_type: Json = {
        "string": texts.get(field.get("format", ""), "text" + "." * field.get("minLength", 0)),
        "number": field.get("minimum", 1.5),
        "integer": field.get("minimum", 1),
        "boolean": True,
        "object": {},
    }
    return by_type[field.get("type", "string")]


@asynccontextmanager
async def product(entry: Json, server: str, remote: Remote | None, folder: Path) -> AsyncGenerator[Tried]:
    """The product with this server only."""
    with tempfile.TemporaryDirectory() as name:
        redis = LocalServer(embedded_binary(), Path(name))
        redis.start()
        config = Path(name) / "mcp.json"
        config.write_text(json.dumps({"mcpServers": {server: entry}}))
        if remote is not None:
            remote.start(folder)
        try:
            async with (
                Model().serving() as model,
                working(redis.url, config),
                running_engine(settings(Path(name), redis.url, model.url)) as engine,
            ):
                yield Tried(engine, model, server, remote, folder)
        finally:
            if remote is not None:
                remote.stop()
            redis.stop()
