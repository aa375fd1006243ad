"""The engine as a process: how it starts, how it refuses to, how it stops."""

import signal
import socket
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import httpx2
import pytest

from deploy.local.ports import free_port
from tests.integration.engines import Model
from tests.marks import promise
from tests.support.forked import as_forked
from tests.support.processes import Process, running

ENGINE = Path(sys.executable).with_name("dialog-engine")
SECRET = "hunter2hunter2"


@pytest.fixture
def env(tmp_path: Path, redis_url: str, model: Model) -> dict[str, str]:
    return {
        "PORT": str(free_port()),
        "OUTBOX_PATH": str(tmp_path / "engine.sqlite3"),
        "REDIS_URL": redis_url,
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": SECRET,
        "SHUTDOWN_GRACE_SECONDS": "0.5",
        "TOOLS_WAIT_SECONDS": "0",
    }


def url(env: dict[str, str]) -> str:
    return f"http://127.0.0.1:{env['PORT']}"


def engine(env: dict[str, str], folder: Path) -> AbstractAsyncContextManager[Process]:
    return running(as_forked(str(ENGINE)), env=env, cwd=folder, ready_url=f"{url(env)}/readyz")


async def refusal(env: dict[str, str], folder: Path) -> str:
    """What the engine says when it does not start."""
    process = Process([ENGINE], env=env, cwd=folder)
    try:
        assert await process.ended(20) == 2, process.output()
        assert "Traceback" not in process.output()
        assert SECRET not in process.output()
        return process.output()
    finally:
        process.close()


async def test_a_wrong_setting_stops_the_start_and_is_named(env: dict[str, str], tmp_path: Path) -> None:
    said = await refusal(env | {"HOST": "0.0.0.0"}, tmp_path)
    assert "HOST 0.0.0.0 can be reached from other machines: set API_KEYS" in said


async def test_a_port_that_is_taken_stops_the_start_before_anything_is_touched(
    env: dict[str, str], tmp_path: Path
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", int(env["PORT"])))
        taken.listen()
        assert f"PORT {env['PORT']} cannot be listened on" in await refusal(env, tmp_path)
    assert list(tmp_path.iterdir()) == []  # noqa: ASYNC240


@promise("SIGHUP drains as SIGTERM does, and no text reaches the terminal through a log")
async def test_an_open_stream_ends_well_at_a_shutdown_and_its_turn_goes_on_at_the_next_start(
    env: dict[str, str], tmp_path: Path, model: Model
) -> None:
    model.held.clear()
    async with httpx2.AsyncClient(base_url=url(env), trust_env=False, timeout=20) as client:
        async with engine(env, tmp_path) as process:
            async with client.stream("POST", "/v1/chat", json={"message": "Hi"}) as response:
                lines = response.aiter_lines()
                while await anext(lines) != "event: text":
                    pass
                turn, session = response.headers["x-turn-id"], response.headers["x-session-id"]
                process.send(signal.SIGHUP)
                stopped_at = time.monotonic()
                # The end of the stream, and no error: a client comes back for the rest.
                async for _ in lines:
                    pass
                assert time.monotonic() - stopped_at < 3
            assert await process.ended(8) in (0, -signal.SIGTERM)
            assert time.monotonic() - stopped_at < 6
            assert "Traceback" not in process.output()
            assert " ERROR " not in process.output()
            assert "\x1b" not in process.output()

        model.held.set()
        async with engine(env, tmp_path):
            events = (await client.get(f"/v1/turns/{turn}/events")).text
            assert "event: reset" in events
            assert events.rstrip().rpartition("event: ")[2].startswith("done")
            messages = (await client.get(f"/v1/sessions/{session}/messages")).json()["messages"]
    assert [message["content"] for message in messages] == ["Hi", "Hello"]
