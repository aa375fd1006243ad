"""The size of the project: lines, words, settings; the files of one tool-calling turn, and the generators of one token.

    python -m benchmarks.turn_path [--lines] [--write] [--turns 3] [--idle-seconds 6]

With `--write` the files are written into docs/architecture.md, which a test compares with a turn that it runs.

The first part counts lines, as `wc -l` does, by language and by subsystem: a folder of a package, or of the tests.
Words are those of the documents, and settings those of `.env.example`, which a test compares with what is read.

The second part runs an engine and a worker in this process, on an embedded Valkey and a temporary SQLite file. The demo
model (over HTTP) and the demo MCP server (over stdio) are separate processes. The method:

1. The engine is started and becomes ready. After a pause of two seconds, which also precedes every measured turn so
   that earlier work has ended, the idle period begins. It is longer than the interval of the heartbeats.
   `sys.setprofile` records every file under `services/` of which a function is called, or a coroutine resumed, on the
   main thread. Module bodies do not count.
2. One turn is run without being measured: it creates the session and triggers late imports.
3. Each measured turn asks one question, which the model answers with one tool call and then with text. The files are
   recorded from the POST until the end of the event stream. A file is on the path if a task that started after the POST
   runs one of its functions, or if other code does (a background loop, a callback of a transport) and the file was not
   recorded in the idle period.
4. The result is the files that are on the path of every measured turn, in the order in which the first turn needs them.

Other threads are not observed: of the storage only what runs on the event loop's thread is recorded.

The third part is one more turn, whose answer comes slowly, so that each token is an event of its own. It counts how
often each asynchronous generator under `services/` is resumed; a token passes through those that are resumed for every
event.
"""

import argparse
import asyncio
import inspect
import json
import os
import re
import socket
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Generator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, redirect_stdout
from itertools import groupby
from pathlib import Path
from types import FrameType

import httpx2

from benchmarks.arguments import at_least
from callstream_runtime.settings_sources import read_settings
from deploy.local.ports import free_port
from dialog_engine.http.app import server_of
from dialog_engine.settings import Settings as EngineSettings
from dialog_engine.wiring.engine import build_app
from examples.demo_model.request import MODEL_ID
from plugins_mcp.config import Settings as WorkerSettings
from plugins_mcp.wiring import run_worker
from tests.promises import words_of_documents
from tests.support.processes import ROOT, running
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until

EXAMPLE = ROOT / ".env.example"
SETTING = re.compile(r"^# [A-Z][A-Z0-9_]*=", re.MULTILINE)
SUFFIXES = (".py", ".lua", ".sql", ".js")
FOLDERS = ("services", "examples", "deploy", "benchmarks", "tests")
SERVICES = str(ROOT / "services") + os.sep
MOST_FILES = 84
"""A turn may pass through no more files than this: waiting messages and branches added four, choice, sessions,
questions and reads of resources four; request ids, repetitions and histories that are resent four."""
MOST_LINES = 300
"""None of these files may have more lines than this."""
MOST_GENERATORS = 6
"""A token may pass through no more asynchronous generators than this, from the model's response to the client's."""
DOCUMENT = ROOT / "docs" / "architecture.md"
BEGINS = "<!-- The files of a turn, by `python -m benchmarks.turn_path --write`: -->\n"
ENDS = "<!-- The end of the files of a turn. -->\n"
QUESTION = "What is 17 * 23 + 4?"
CALLED = "demo__calculate"
SMALL_TALK = "Hello!"
TOKEN_MS = 60.0
"""The pause between two tokens: longer than the log collects deltas, so that each becomes an event."""
SETTLE_SECONDS = 2.0
START_SECONDS = 60.0


# --- Lines ---


def subsystem(file: Path) -> str:
    """The part of the project to which a file belongs; `file` is relative to the root."""
    parts = list(file.parts)
    if parts[0] == "services":
        package = parts[3:]
        return f"{package[0]}/{package[1]}" if len(package) > 2 else package[0]
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def count_lines() -> dict[str, Counter[str]]:
    """Lines by subsystem and suffix."""
    lines: dict[str, Counter[str]] = {}
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in SUFFIXES and path.is_file() and "node_modules" not in path.parts:
                counter = lines.setdefault(subsystem(path.relative_to(ROOT)), Counter())
                counter[path.suffix] += path.read_bytes().count(b"\n")
    return lines


def print_lines(lines: dict[str, Counter[str]]) -> None:
    print(f"{'lines':<34}" + "".join(f"{suffix[1:]:>8}" for suffix in SUFFIXES))
    tests, product = Counter[str](), Counter[str]()
    for name, counts in lines.items():
        top = name.partition("/")[0]
        if top == "tests":
            tests += counts
        elif top not in FOLDERS:
            product += counts
        print_row(name, counts)
    print_row("all services", product)
    print_row("all tests", tests)
    print(f"{sum(words_of_documents().values()):,} words of docs, {len(SETTING.findall(EXAMPLE.read_text()))} settings")


def print_row(name: str, counts: Counter[str]) -> None:
    print(f"{name:<34}" + "".join(f"{counts[suffix] or '':>8}" for suffix in SUFFIXES))


# --- The path of a turn ---


class Profile:
    """The files under `services/` that run: all of them, and those that new tasks run.

    Both are in the order of the first function, with its number in the order of all functions.
    """

    def __init__(self) -> None:
        self.files: dict[str, int] = {}
        self.by_new_tasks: dict[str, int] = {}
        self.generators = Counter[str]()
        """How often each asynchronous generator was begun or resumed."""
        self._before = asyncio.all_tasks()
        self._functions = 0

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """The callback of `sys.setprofile`."""
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(SERVICES) or code.co_name == "<module>":
            return
        if code.co_flags & inspect.CO_ASYNC_GENERATOR:
            self.generators[f"{code.co_filename.partition('/src/')[2]}: {code.co_qualname}"] += 1
        self._functions += 1
        self.files.setdefault(code.co_filename, self._functions)
        task = asyncio.current_task()
        if task is not None and task not in self._before:
            self.by_new_tasks.setdefault(code.co_filename, self._functions)

    def path(self, idle: "Profile") -> list[str]:
        """The files that are on the path of the turn, when `idle` has seen what runs without one."""
        beside = {file: at for file, at in self.files.items() if file not in idle.files}
        on_path = beside | self.by_new_tasks
        return sorted(on_path, key=on_path.__getitem__)


@contextmanager
def profiled() -> Generator[Profile]:
    """Record the files that run on this thread during the block."""
    profile = Profile()
    sys.setprofile(profile)
    try:
        yield profile
    finally:
        sys.setprofile(None)


async def turn_path(turns: int = 3, idle_seconds: float = 6.0) -> list[str]:
    """The files on the path of one tool-calling turn, relative to the root."""
    async with pair() as http:
        await asyncio.sleep(SETTLE_SECONDS)
        with profiled() as idle:
            await asyncio.sleep(idle_seconds)
        session = (await http.post("/v1/sessions")).json()["sessionId"]
        await ask(http, session)
        paths = [await _path_of_one(http, session, idle) for _ in range(turns)]
    first, *others = paths
    return [str(Path(file).relative_to(ROOT)) for file in first if all(file in other for other in others)]


async def _path_of_one(http: httpx2.AsyncClient, session: str, idle: Profile) -> list[str]:
    await asyncio.sleep(SETTLE_SECONDS)
    with profiled() as turn:
        await ask(http, session)
    return turn.path(idle)


async def token_path(tool_mode: str = "auto") -> list[str]:
    """The asynchronous generators under `services/` that each token of an answer passes through, on its way from
    the model to the client. `tool_mode` is the engine's."""
    async with pair(TOKEN_MS, tool_mode=tool_mode) as http:
        with profiled() as turn:
            text = (await http.post("/v1/chat", json={"message": SMALL_TALK})).text
    events = text.count("event: text")
    assert events > 5, text
    return sorted(name for name, times in turn.generators.items() if times >= events)


async def ask(http: httpx2.AsyncClient, session: str) -> None:
    """Run one turn to the end of its stream."""
    text = (await http.post("/v1/chat", json={"message": QUESTION, "sessionId": session})).text
    events = [json.loads(line.removeprefix("data: ")) for line in text.splitlines() if line.startswith("data: ")]
    called = {event["toolName"] for event in events if event.get("status") == "succeeded"}
    assert called == {CALLED}, text
    assert events[-1]["reason"] == "stop", text


def lines_of(path: list[str]) -> dict[str, int]:
    """The number of lines of each file."""
    return {file: (ROOT / file).read_bytes().count(b"\n") for file in path}


# --- The same in the documentation ---


def documented() -> str:
    """The list of files that docs/architecture.md has."""
    _, _, after = DOCUMENT.read_text().partition(BEGINS)
    listed, _, _ = after.partition(ENDS)
    return listed


def write(path: list[str]) -> None:
    """Replace the list of files in docs/architecture.md."""
    before, begins, after = DOCUMENT.read_text().partition(BEGINS)
    _, ends, rest = after.partition(ENDS)
    if not begins or not ends:
        raise SystemExit(f"{DOCUMENT} needs these two lines, and the list goes between them:\n{BEGINS}{ENDS}")
    DOCUMENT.write_text(before + begins + as_markdown(path) + ends + rest)


def as_markdown(path: list[str]) -> str:
    """A numbered list with one item for all files of a folder that follow each other."""
    folders = groupby((Path(file.partition("/src/")[2]) for file in path), key=lambda file: file.parent)
    items = (f"{folder}/: {', '.join(f'`{file.name}`' for file in files)}" for folder, files in folders)
    return "".join(f"{number}. {item}\n" for number, item in enumerate(items, 1))


@asynccontextmanager
async def pair(token_ms: float = 0, **settings: str) -> AsyncGenerator[httpx2.AsyncClient]:
    """Run an engine and a worker in this process with everything they need, and yield a client of the engine.

    The model pauses for `token_ms` after each token. `settings` are more of the engine's."""
    async with AsyncExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="callstream-")))
        redis = LocalServer(embedded_binary(), folder)
        redis.start()
        stack.callback(redis.stop)
        model = f"http://127.0.0.1:{(model_port := free_port())}"
        demo_model = [sys.executable, "-m", "examples.demo_model", "--port", str(model_port)]
        demo_model += ["--token-delay-ms", str(token_ms)]
        await stack.enter_async_context(running(demo_model, ready_url=f"{model}/healthz"))
        await stack.enter_async_context(_worker(redis.url, folder))
        url = await stack.enter_async_context(_engine(redis.url, folder, f"{model}/v1", settings))
        http = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=60, trust_env=False))

        async def ready() -> bool:
            return (await http.get("/readyz")).json()["status"] == "ready"

        await wait_until(ready, START_SECONDS, what="readiness")
        yield http


@asynccontextmanager
async def _worker(redis_url: str, folder: Path) -> AsyncGenerator[None]:
    server = {
        "command": sys.executable,
        "args": ["-m", "examples.demo_server", "--transport", "stdio"],
        "env": {"PYTHONPATH": str(ROOT)},
        "callstream": {"trust": True},
    }
    config = folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"demo": server}}))
    values = {"redis_url": redis_url, "mcp_config": config, "health_port": 0, "drain_seconds": 1, "_env_file": None}
    stopping = asyncio.Event()
    running_worker = asyncio.create_task(run_worker(read_settings(WorkerSettings, **values), stopping))
    try:
        yield
    finally:
        stopping.set()
        await running_worker


@asynccontextmanager
async def _engine(redis_url: str, folder: Path, model_url: str, settings: Mapping[str, str]) -> AsyncGenerator[str]:
    values = {
        "redis_url": redis_url,
        "outbox_path": folder / "engine.sqlite3",
        "openai_base_url": model_url,
        "openai_model": MODEL_ID,
        "shutdown_grace_seconds": 0.1,
        "_env_file": None,
        **settings,
    }
    closing = asyncio.Event()
    app = build_app(read_settings(EngineSettings, **values), closing)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = server_of(app, closing, grace_seconds=0.1)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        try:
            await wait_until(lambda: server.started or serving.done(), START_SECONDS, what="the engine's start")
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving


def main() -> None:
    """Print both parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", action="store_true", help="count lines only")
    parser.add_argument("--write", action="store_true", help="write the files into docs/architecture.md")
    parser.add_argument("--turns", type=at_least(1), default=3, help="turns that are measured")
    parser.add_argument("--idle-seconds", type=float, default=6.0, help="length of the idle period")
    options = parser.parse_args()
    if not options.write:
        print_lines(count_lines())
    if options.lines:
        return
    with redirect_stdout(sys.stderr):  # the other processes' output is printed when they end
        path = asyncio.run(turn_path(options.turns, options.idle_seconds))
        generators = asyncio.run(token_path())
    if options.write:
        write(path)
    print(f"\n{len(path)} files on the path of one tool-calling turn, in the order of their first function:")
    lines = lines_of(path)
    print("\n".join(f"{file}  {lines[file]}" for file in path))
    long = sum(count > MOST_LINES for count in lines.values())
    print(f"{sum(lines.values()):,} lines; {long} files are longer than {MOST_LINES}")
    print(f"\n{len(generators)} asynchronous generators that each token of an answer passes through:")
    print("\n".join(generators))


if __name__ == "__main__":
    main()
