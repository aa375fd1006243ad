"""The engine as a process: how it starts, how it refuses to, how it stops."""

import json
import signal
import socket
import sys
import time
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import anyio
import httpx2
import pytest
from prometheus_client.parser import text_string_to_metric_families

from deploy.local.ports import free_port
from examples.demo_model.request import MODEL_ID
from tests.integration.engines import Model
from tests.marks import exhaustive, promise
from tests.support.processes import Process, running
from tests.support.waiting import wait_until

pytestmark = pytest.mark.anyio

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
    return running([ENGINE], env=env, cwd=folder, ready_url=f"{url(env)}/readyz")


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


@exhaustive("slow, and the settings' own test proves the warning")
async def test_an_engine_warns_of_a_key_file_that_all_may_read(env: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("0" * 64)
    (tmp_path / "keys").chmod(0o644)
    async with engine(env | {"REQUEST_KEYS_FILE": str(tmp_path / "keys")}, tmp_path) as process:
        assert "REQUEST_KEYS_FILE: every user of this machine can read" in process.output()


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


@promise("a SQLite file is used by one engine at a time")
@exhaustive("slow, and the store's own test proves the refusal")
async def test_a_second_engine_on_the_same_file_is_refused_and_the_first_goes_on(
    env: dict[str, str], tmp_path: Path
) -> None:
    async with engine(env, tmp_path):
        assert "another engine is using it" in await refusal(env | {"PORT": str(free_port())}, tmp_path)
        async with httpx2.AsyncClient(base_url=url(env), trust_env=False) as client:
            assert (await client.get("/readyz")).status_code == 200


SIGNALS = [pytest.param(signal.SIGTERM, marks=exhaustive("slow, and handled as the other is")), signal.SIGHUP]


@promise("SIGHUP drains as SIGTERM does, and no text reaches the terminal through a log")
@pytest.mark.parametrize("number", SIGNALS)
async def test_an_open_stream_ends_well_at_a_shutdown_and_its_turn_goes_on_at_the_next_start(
    env: dict[str, str], tmp_path: Path, model: Model, number: signal.Signals
) -> None:
    model.held.clear()
    async with httpx2.AsyncClient(base_url=url(env), trust_env=False, timeout=20) as client:
        async with engine(env, tmp_path) as process:
            async with client.stream("POST", "/v1/chat", json={"message": "Hi"}) as response:
                lines = response.aiter_lines()
                while await anext(lines) != "event: text":
                    pass
                turn, session = response.headers["x-turn-id"], response.headers["x-session-id"]
                process.send(number)
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


@promise("with Redis or all workers down chat still answers")
async def test_with_the_demo_model_and_no_worker_at_all_text_chat_works(env: dict[str, str], tmp_path: Path) -> None:
    port = free_port()
    demo = [sys.executable, "-m", "examples.demo_model", "--port", str(port), "--token-delay-ms", "0"]
    async with running(demo, ready_url=f"http://127.0.0.1:{port}/healthz"):
        env = env | {"OPENAI_BASE_URL": f"http://127.0.0.1:{port}/v1", "OPENAI_MODEL": MODEL_ID}
        async with (
            engine(env, tmp_path),
            httpx2.AsyncClient(base_url=url(env), trust_env=False, timeout=20) as client,
        ):
            ready = (await client.get("/readyz")).json()
            assert (ready["status"], ready["parts"]["workers"], ready["parts"]["redis"]) == ("degraded", 0, "ok")
            answer = (await client.post("/v1/chat", json={"message": "Hello!"})).text
            assert "event: text" in answer
            assert '"reason":"stop"' in answer
            about = (await client.get("/v1/about")).json()
            assert about["name"] == "Callstream"
            assert SECRET not in json.dumps(about)
            assert (await client.get("/healthz")).json() == {"status": "ok"}
            metrics = (await client.get("/metrics")).text
            families = {family.name: family for family in text_string_to_metric_families(metrics)}
            samples = {sample.name: sample.value for family in families.values() for sample in family.samples}
            turns = families["dialog_turns"].samples
            assert samples["dialog_redis_up"] == 1
            assert sum(sample.value for sample in turns if sample.name == "dialog_turns_total") == 1
            assert samples["callstream_dead_letters"] == 0
            assert samples["callstream_stream_lag"] == 0
            assert samples["callstream_stream_pending"] == 0
            assert samples["callstream_stream_oldest_pending_seconds"] == 0
            await wait_until(lambda: _outbox_empty(client))


async def _outbox_empty(client: httpx2.AsyncClient) -> bool:
    lines = (await client.get("/metrics")).text.splitlines()
    await anyio.lowlevel.checkpoint()
    return "dialog_outbox_rows 0.0" in lines and "dialog_outbox_oldest_seconds 0.0" in lines
