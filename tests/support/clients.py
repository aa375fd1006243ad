"""Clients that people have already, unchanged from their packages, as programs that ask engines."""

import json
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from plugins_contract.messages import new_id
from tests.support.node import install, node_binary
from tests.support.processes import ROOT
from tests.support.replicas import QUICK_ENGINE, Replica
from tests.support.stack import Stack

FOLDER = ROOT / "tests" / "e2e" / "clients"
ANN = "ann-key-of-sixteen-characters"
MODEL = "openai:demo-scripted"


@dataclass(frozen=True)
class Client:
    """A program in `clients`, and the npm packages that it needs. The document has lines for it that begin with
    `imports`; other tests run those of the clients without. `decides`: its own user approves calls. `leaving`: what
    becomes of a turn whose connection it closes. `version`: of the AI SDK."""

    program: str
    packages: Sequence[str] = ()
    imports: str = ""
    decides: bool = False
    leaving: str = "cancelled"
    version: int = 0


def _react(version: int) -> Client:
    packages = (f"@ai-sdk/react@{version - 3}", f"ai@{version}", "react@19")
    return Client("ai_sdk_react.mjs", packages, decides=version > 5, leaving="done", version=version)


CLIENTS = {
    "openai": Client("openai.mjs", ("openai@7",), 'import OpenAI from "openai"'),
    "openai-python": Client("openai_python.py"),
    "openai-compatible": Client(
        "openai_compatible.mjs", ("@ai-sdk/openai-compatible@3", "ai@7"), "import { createOpenAICompatible }"
    ),
    "openai-responses": Client("openai_responses.py", decides=True),
    "openai-responses-node": Client("openai_responses.mjs", ("openai@7",), decides=True),
    "ai-sdk-openai": Client("ai_sdk_openai.mjs", ("@ai-sdk/openai@4", "ai@7"), "import { createOpenAI }", decides=True),
    "ai-sdk-5": _react(5),
    "ai-sdk-6": _react(6),
    "ai-sdk-7": _react(7),
    "langchain": Client("langchain.py", imports="import os\nfrom langchain_openai"),
}


@dataclass(frozen=True)
class Running:
    """A client with the command that runs it, and the folder with its packages."""

    kind: Client
    command: Sequence[str | Path]
    packages: Path

    def ask(
        self,
        engines: Sequence[Replica],
        *questions: str,
        chat: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
        **own: Any,
    ) -> list[dict[str, Any]]:
        """What it shows for each question of a chat, which are asked at these engines in turn.

        It leaves the answer to the question number `cut`, with `stops` as its users stop it, and comes back for it at
        the question number `again`. It `approves` calls or refuses them, and has a `tool` of its own.
        """
        name = chat or new_id()
        asked = {
            "urls": [f"http://127.0.0.1:{engine.port}" for engine in engines],
            "key": ANN,
            "chat": name,
            "headers": {"X-Session-Id": name, **headers},
            "questions": questions,
            "model": MODEL,
            "version": self.kind.version,
        } | dict.fromkeys(("cut", "again", "stops", "approves", "tool"))
        done = subprocess.run(
            self.command,
            input=json.dumps(asked | own),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def running(name: str, packages: Path) -> Running:
    """The client of that name, with its packages in this folder."""
    kind = CLIENTS[name]
    if not kind.packages:
        return Running(kind, [sys.executable, "-m", f"tests.e2e.clients.{Path(kind.program).stem}"], packages)
    node = node_binary()
    install(packages, *kind.packages)
    return Running(kind, [node, FOLDER / kind.program, packages], packages)


@contextmanager
def engine_of(stack: Stack, name: str) -> Generator[Replica]:
    """An engine that offers its tools to Ann, and runs for as long as the block."""
    engine = Replica(stack, name, program=QUICK_ENGINE)
    engine.http.headers["authorization"] = f"Bearer {ANN}"
    try:
        engine.wait_for_tools()
        yield engine
    finally:
        engine.close()
        stack.bury(engine.process)
