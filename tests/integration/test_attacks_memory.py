"""What a thousand connections of strangers cost an engine, in each state in which they can stay."""

import asyncio
import socket
import sys
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import psutil
import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive
from tests.support.processes import ROOT, running
from tests.support.waiting import wait_until

pytestmark = exhaustive("measures the memory of a thousand connections")

ENGINE = Path(sys.executable).with_name("dialog-engine")
CONNECTIONS = 1_000
MOST_MB = 64
HEAD = b"%s HTTP/1.1\r\nhost: x\r\n"
MANY = b"".join(b"x%d: %s\r\n" % (n, b"y" * 167) for n in range(97))
"""With the 97 headers a head is nearly as large as it may be, with the memory for its headers."""
LONG = b"x: " + b"y" * 32_000 + b"\r\n"
WIDE = b"GET /v1/%F0%9F%98%80" + b"a" * 6_400
PAGE = next((ROOT / "services/dialog-engine/src/dialog_engine/http/web").glob("main-*.js"))
UNREAD = HEAD % f"GET /assets/{PAGE.name}".encode() + b"\r\n"
CLOSED = HEAD % b"GET /v1/about"

STATES = {
    "a head of many headers": CLOSED + MANY,
    "a head with a long header": CLOSED + LONG,
    "an answered request and the next head": CLOSED + MANY + b"\r\n" + CLOSED + MANY,
    "an answered request with a path of wide characters": HEAD % WIDE + b"\r\n" + HEAD % WIDE,
    "answers that are not read, and requests behind them": UNREAD * 5 + HEAD % b"GET /" + MANY + b"\r\n" + UNREAD * 900,
    "a body that is not read": HEAD % b"POST /v1/chat" + MANY + b"content-length: 900000\r\n\r\n" + b"a" * 100_000,
}


@pytest.mark.parametrize("state", STATES)
async def test_a_thousand_connections_of_strangers_take_64_mb_at_most(tmp_path: Path, state: str) -> None:
    port = free_port()
    env = {
        "PORT": str(port),
        "OUTBOX_PATH": str(tmp_path / "engine.sqlite3"),
        "ENABLE_MCP": "false",
        "API_KEYS": "ann:a-key-of-sixteen-characters",
        "OPENAI_BASE_URL": "http://127.0.0.1:9",
        "OPENAI_API_KEY": "none",
        "REDIS_URL": "redis://127.0.0.1:9",
    }
    async with running([ENGINE], env=env, cwd=tmp_path, ready_url=f"http://127.0.0.1:{port}/readyz") as engine:
        process = psutil.Process(engine.pid)
        async with sent(port, STATES[state], 20):  # the first requests import something
            await idle(process)
        before = process.memory_info().rss
        async with sent(port, STATES[state], CONNECTIONS):
            await idle(process)
            grown = (process.memory_info().rss - before) / 1e6
        print(f"{state}: +{grown:.0f} MB")
        assert grown <= MOST_MB


async def idle(process: psutil.Process) -> None:
    """Return when the process has hardly used the processor for half a second."""

    async def rested() -> bool:
        return await asyncio.to_thread(process.cpu_percent, 0.5) < 10

    await wait_until(rested, 60)


@asynccontextmanager
async def sent(port: int, data: bytes, connections: int) -> AsyncGenerator[None]:
    """Connections that have sent this, as far as it is read, and that read nothing."""
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:

        async def one() -> None:
            each = stack.enter_context(socket.socket())
            each.setblocking(False)
            for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
                each.setsockopt(socket.SOL_SOCKET, buffer, 4096)
            await loop.sock_connect(each, ("127.0.0.1", port))
            with suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await loop.sock_sendall(each, data)

        for at in range(0, connections, 100):
            await asyncio.gather(*(one() for _ in range(min(100, connections - at))))
        yield
