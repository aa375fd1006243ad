"""The measured relays, each a separate process in front of the same provider."""

import os
import secrets
import shutil
import socket
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.relay.answers import MODEL, Answer
from benchmarks.relay.readers import post
from deploy.local.ports import free_port
from tests.support.processes import ROOT, Process, answers
from tests.support.servers import LocalServer, embedded_binary

TICKS = os.sysconf("SC_CLK_TCK")
START_SECONDS = 90.0
"""LiteLLM's proxy takes this long on a small machine."""


@dataclass(frozen=True)
class Relay:
    """A relay. `beside` are the other processes that it needs."""

    name: str
    process: Process
    port: int
    path: str = "/v1/chat"
    beside: dict[str, Process] = field(default_factory=dict[str, Process])
    redis_url: str = ""
    key: str = ""

    def request(self, answer: Answer) -> bytes:
        """The request that makes the model give this answer."""
        return post(self.port, self.path, _body(self.path, str(answer)), self.key)


def _body(path: str, text: str) -> object:
    match path:
        case "/v1/chat":
            return {"message": text}
        case "/v1/responses":
            return {"model": MODEL, "stream": True, "input": text}
        case "/v1/ai-sdk/chat":
            message = {"id": "m", "role": "user", "parts": [{"type": "text", "text": text}]}
            return {"id": secrets.token_hex(8), "trigger": "submit-message", "messages": [message]}
        case _:
            return {"model": MODEL, "stream": True, "messages": [{"role": "user", "content": text}]}


def cpu_seconds(process: Process) -> float:
    """The processor time of a process, in user and system mode."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_bytes(process: Process) -> int:
    """The resident memory of a process (RSS)."""
    return int(Path(f"/proc/{process.pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@contextmanager
def provider() -> Generator[Relay]:
    """The mock provider; asked directly it is the baseline."""
    port = free_port()
    with _running([sys.executable, "-m", "benchmarks.relay.provider", str(port)]) as process:
        process.wait_ready(lambda: _listens(port))
        yield Relay("the provider itself", process, port, "/v1/chat/completions")


@contextmanager
def callstream(provider_port: int, folder: Path, **settings: str) -> Generator[Relay]:
    """A dialog-engine with its SQLite file and a Redis of its own, with an append-only file. `settings` are more."""
    with ExitStack() as stack:
        redis = LocalServer(embedded_binary(), folder)
        redis.start()
        stack.callback(redis.stop)
        port = free_port()
        env = {
            "PORT": str(port),
            "REDIS_URL": redis.url,
            "OUTBOX_PATH": str(folder / "engine.sqlite3"),
            "OPENAI_BASE_URL": _url(provider_port),
            "OPENAI_MODEL": MODEL,
            "LOG_LEVEL": "WARNING",
            "SHUTDOWN_GRACE_SECONDS": "0",
            "TOOLS_WAIT_SECONDS": "0",  # there is no worker
            "MAX_CONNECTIONS_PER_ADDRESS": "10000",
            "MODEL_TIMEOUT_SECONDS": "600",  # answers that stay open are silent
            # Compiling leaves free memory, which hides that of streams: the first engine stores its bytecode.
            "PYTHONDONTWRITEBYTECODE": "",
            **settings,
        }
        # In another folder, so that a `.env` of the repository is not read.
        argv = [Path(sys.executable).with_name("dialog-engine")]
        process = stack.enter_context(_running(argv, env, folder))
        process.wait_ready(lambda: answers(f"http://127.0.0.1:{port}/readyz"), START_SECONDS)
        yield Relay("Callstream", process, port, beside={"its Redis": redis.process}, redis_url=redis.url)


@contextmanager
def naive(provider_port: int) -> Generator[Relay]:
    """The naive relay."""
    port = free_port()
    argv = [sys.executable, "-m", "benchmarks.relay.naive", str(port), _url(provider_port)]
    with _running(argv) as process:
        process.wait_ready(lambda: _listens(port), START_SECONDS)
        yield Relay("naive relay", process, port)


def litellm_command() -> str | None:
    """The command of LiteLLM's proxy: `LITELLM`, or `litellm` if it is on the path."""
    return os.environ.get("LITELLM") or shutil.which("litellm")


@contextmanager
def litellm(command: str, provider_port: int, folder: Path) -> Generator[Relay]:
    """LiteLLM's proxy with its default settings."""
    port = free_port()
    config = folder / "litellm.yaml"
    config.write_text(
        f"model_list:\n  - model_name: {MODEL}\n    litellm_params:\n      model: openai/{MODEL}\n"
        f"      api_base: {_url(provider_port)}\n      api_key: none\n"
    )
    key = f"sk-{secrets.token_hex(32)}"  # it does not start without one
    env = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MASTER_KEY": key}
    with _running([command, "--config", str(config), "--port", str(port)], env, folder) as process:
        process.wait_ready(lambda: answers(f"http://127.0.0.1:{port}/health/liveliness"), START_SECONDS)
        yield Relay("LiteLLM proxy", process, port, "/v1/chat/completions", key=key)


@contextmanager
def _running(
    argv: Sequence[str | Path], env: Mapping[str, str] | None = None, folder: Path = ROOT
) -> Generator[Process]:
    process = Process(argv, env=env, cwd=folder)
    try:
        yield process
    finally:
        process.close()


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}/v1"


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
