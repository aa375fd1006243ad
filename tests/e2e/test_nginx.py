"""Event streams through a real nginx, with the configuration that operators are given."""

import asyncio
import re
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import httpx2
import pytest

from dialog_engine.config.http import HttpSettings
from dialog_engine.http.streams import StreamTimes
from dialog_engine.wiring.times import EngineTimes
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.marks import exhaustive, promise
from tests.support import nginx
from tests.support.nginx import CONFIG, running_nginx
from tests.support.waiting import TEST_SECONDS, wait_until

pytestmark = [
    pytest.mark.skipif(nginx.missing() is not None, reason=nginx.missing() or ""),
    exhaustive("needs nginx"),
]


@pytest.fixture
async def model() -> AsyncGenerator[Model]:
    async with Model().serving() as model:
        model.held.clear()
        yield model


@pytest.fixture
async def engine(
    tmp_path: Path, redis_url: str, model: Model, request: pytest.FixtureRequest
) -> AsyncGenerator[Engine]:
    configured = settings(tmp_path, redis_url, model.url, stream_ping_seconds=0.25)
    async with running_engine(configured, times=getattr(request, "param", EngineTimes())) as engine:
        yield engine


@contextmanager
def in_front_of(engine: Engine, folder: Path, **changes: str) -> Generator[Engine]:
    """The engine as it is seen through an nginx."""
    port = int(engine.url.rpartition(":")[2])
    with running_nginx(folder / "nginx", [port], **changes) as url:
        yield Engine(engine.app, engine.server, int(url.rpartition(":")[2]))


async def later_bytes(through: Engine, **headers: str) -> httpx2.Headers | None:
    """The headers of a stream of which something more came after its first words: a ping."""
    body = {"message": "Hi"}
    try:
        async with (
            asyncio.timeout(TEST_SECONDS),
            through.client.stream("POST", "/v1/chat", json=body, headers=headers) as response,
        ):
            async for line in response.aiter_lines():
                if line == ": ping":
                    return response.headers
            return None
    except TimeoutError:
        return None
    finally:
        await through.client.aclose()


@promise("streams pass a real nginx", only_in_test_all="needs nginx")
async def test_events_are_not_buffered_by_nginx(engine: Engine, tmp_path: Path) -> None:
    assert "proxy_buffering" not in CONFIG.read_text()
    with in_front_of(engine, tmp_path) as through:
        headers = await later_bytes(through)
    assert headers is not None
    assert headers["server"].startswith("nginx")
    assert headers["cache-control"] == "no-store, no-transform"


@asynccontextmanager
async def silent_client(through: Engine, request: bytes) -> AsyncGenerator[None]:
    """A client that has sent a request and does not read the answer."""
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(client, ("127.0.0.1", int(through.url.rpartition(":")[2])))
        await loop.sock_sendall(client, request)
        yield
    await through.client.aclose()


@promise("streams pass a real nginx")
@pytest.mark.parametrize("engine", [EngineTimes(streams=StreamTimes(unread=0.5))], indirect=True)
async def test_a_client_that_does_not_read_through_nginx_is_dropped(
    engine: Engine, model: Model, tmp_path: Path
) -> None:
    model.replies = [[{"content": "x" * 50_000}] * 200]
    model.held.set()
    head = b"POST /v1/chat HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    request = head + b'content-length: 16\r\n\r\n{"message":"Hi"}'
    with in_front_of(engine, tmp_path) as through:
        async with silent_client(through, request):
            await wait_until(lambda: not (model.replies or model.open or streams()))
    assert "dialog_clients_dropped_total 1.0" in (await engine.client.get("/metrics")).text


async def test_an_answer_that_is_not_read_fills_no_disk_of_nginx(engine: Engine, model: Model, tmp_path: Path) -> None:
    """20 exports of 100 MB that nobody read became 1.7 GB of temporary files in 25 seconds."""
    model.replies = [[{"content": "x" * 50_000}] * 60 for _ in range(5)]  # more than the kernel keeps
    model.held.set()
    for _ in range(5):
        await engine.client.post("/v1/chat", json={"message": "Hi"})
    with in_front_of(engine, tmp_path) as through:
        async with silent_client(through, b"GET /v1/me/data HTTP/1.1\r\nhost: localhost\r\n\r\n"):
            for _ in range(100):  # others are served, and nginx has time for what it would do
                assert (await through.client.get("/healthz")).status_code == 200
            assert streams() == 1, "the engine waits for the client"


async def test_events_are_not_compressed_by_nginx(engine: Engine, tmp_path: Path) -> None:
    with in_front_of(engine, tmp_path, http="gzip on; gzip_types *; gzip_min_length 0; gzip_proxied any;") as through:
        assert await later_bytes(through, **{"accept-encoding": "gzip"}) is not None


@promise("streams pass a real nginx")
async def test_pings_keep_a_quiet_stream_open(engine: Engine, model: Model, tmp_path: Path) -> None:
    config = CONFIG.read_text()
    [seconds] = map(int, re.findall(r"proxy_read_timeout (\d+)s;", config))
    assert seconds >= 3 * HttpSettings.model_fields["stream_ping_seconds"].default
    # The same in small: nginx gives up after three seconds, and a ping comes twelve times as often.
    quick = re.sub(r"proxy_read_timeout \w+;", "proxy_read_timeout 3s;", config)
    with in_front_of(engine, tmp_path, config=quick) as through:
        lines: list[str] = []
        async with asyncio.timeout(60), through.client.stream("POST", "/v1/chat", json={"message": "Hi"}) as response:
            async for line in response.aiter_lines():
                lines.append(line)
                if lines.count(": ping") == 16:  # for longer than nginx waits
                    model.held.set()
        assert "event: done" in lines
        await through.client.aclose()


@promise("streams pass a real nginx")
async def test_an_answer_without_a_stream_may_take_longer_than_a_ping(
    engine: Engine, model: Model, tmp_path: Path
) -> None:
    config = CONFIG.read_text()
    some = re.sub(r"proxy_read_timeout \d+s;", "proxy_read_timeout 1s;", config)
    every = re.sub(r"proxy_read_timeout \w+;", "proxy_read_timeout 1s;", config)
    name = (await engine.client.get("/v1/models")).json()["data"][0]["id"]
    native = "/v1/chat", {"message": "Hi", "stream": False}
    chat = "/v1/chat/completions", {"model": name, "messages": [{"role": "user", "content": "Hi"}]}
    response = "/v1/responses", {"model": name, "input": "Hi"}
    for quick, (path, body), status in (
        (every, native, 504),
        (some, native, 200),
        (some, chat, 200),
        (some, response, 200),
    ):
        model.held.clear()
        with in_front_of(engine, tmp_path, config=quick) as through:
            asked = asyncio.create_task(through.client.post(path, json=body))
            assert (await through.client.get("/healthz")).status_code == 200
            ended, _ = await asyncio.wait([asked], timeout=TEST_SECONDS if status == 504 else 2)
            assert bool(ended) == (status == 504), "nginx gives up after a second where it is told to"
            model.held.set()
            assert (await asked).status_code == status
            await through.client.aclose()


async def test_bodies_with_images_pass_nginx(engine: Engine, model: Model, tmp_path: Path) -> None:
    model.held.set()
    name = (await engine.client.get("/v1/models")).json()["data"][0]["id"]
    image = f"data:image/png;base64,iVBORw0KGgo{'A' * 4_000_001}"
    asked = [{"role": "user", "content": [{"type": "input_image", "image_url": image}]}]
    with in_front_of(engine, tmp_path) as through:
        for path, body in (
            ("/v1/responses", {"model": name, "input": asked}),
            ("/v1/conversations", {"items": asked}),
        ):
            answer = await through.client.post(path, json=body)
            assert answer.status_code == 200, answer.text
        assert (await through.client.post("/v1/chat", json={"message": image})).status_code == 413
        await through.client.aclose()


def streams() -> int:
    """How many requests the engine works on."""
    return sum("run_asgi" in repr(task.get_coro()) for task in asyncio.all_tasks())


async def test_a_disconnect_reaches_the_engine_through_nginx(engine: Engine, tmp_path: Path) -> None:
    with in_front_of(engine, tmp_path) as through:
        assert await later_bytes(through) is not None
        await wait_until(lambda: streams() == 0, what="the end of the stream")


@promise("streams pass a real nginx")
async def test_the_reconnect_hint_passes_nginx_and_the_restarted_engine_continues_the_turn(
    tmp_path: Path, redis_url: str, model: Model
) -> None:
    configured = settings(tmp_path, redis_url, model.url)
    async with AsyncExitStack() as stack:
        async with running_engine(configured) as engine:
            through = stack.enter_context(in_front_of(engine, tmp_path))
            stack.push_async_callback(through.client.aclose)
            answer = await through.client.send(
                through.client.build_request("POST", "/v1/chat", json={"message": "Hi"}), stream=True
            )
            lines = answer.aiter_lines()
            async for line in lines:
                if line == "event: text":
                    break
            turn = answer.headers["x-turn-id"]
        # Read to its end without an error: nginx, too, saw it end well.
        rest = [line async for line in lines]
        assert ": reconnect" in rest
        assert any(line.startswith("retry: ") for line in rest)
        path = f"/v1/turns/{turn}/events"
        assert (await through.client.get(path)).status_code == 502
        model.held.set()
        port = int(engine.url.rpartition(":")[2])
        async with running_engine(configured, port=port):
            names = [event.name for event in await through.events("GET", path)]
    assert names[-2:] == ["message", "done"]
    assert "reset" in names
