"""Open WebUI, unchanged from its package, as a process; without what it needs to run models itself."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest

from deploy.local.ports import free_port
from plugins_contract.messages import new_id
from tests.support.processes import ROOT, Process, answers
from tests.support.waiting import wait_until_blocking

VERSION = "0.12.4"
LEFT_OUT = (
    "accelerate",
    "einops",
    "faster-whisper",
    "opencv-python-headless",
    "rapidocr",
    "sentence-transformers",
    "sentencepiece",
    "soundfile",
    "transformers",
)
"""What only models of its own need, in gigabytes."""
START_SECONDS = 600.0
ANSWER_SECONDS = 120.0
Json = dict[str, Any]


def install(folder: Path) -> Path:
    """Its environment, kept in the folder for the next run. Returns its program."""
    environment, done = folder / "environment", folder / "done"
    if not done.exists():
        uv = shutil.which("uv") or str(ROOT / ".uv" / "bin" / "uv")
        left_out = folder / "left-out.txt"
        left_out.write_text("\n".join(LEFT_OUT))
        python = ["--python", environment / "bin" / "python"]
        _run([uv, "venv", "--clear", "--python", ">=3.11,<3.13", environment])
        _run([uv, "pip", "install", "--excludes", left_out, *python, f"open-webui=={VERSION}"])
        done.touch()
    return environment / "bin" / "open-webui"


def _run(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"uv cannot install Open WebUI: {done.stderr[-300:]}")


@dataclass(frozen=True)
class Connection:
    """One to a server of OpenAI's API, whose models get the prefix. It is not asked for `models` that are given."""

    prefix: str
    url: str
    key: str
    models: Sequence[str] = ()

    @property
    def config(self) -> Json:
        return {"enable": True, "prefix_id": self.prefix, "model_ids": [*self.models], "auth_type": "bearer"}


@dataclass
class Chat:
    """A chat of a user, with its last request, the id of its last answer, and the tools of the page that it may use."""

    id: str = ""
    leaf: str | None = None
    tools: Sequence[str] = ()
    asked: Json = field(default_factory=dict[str, Any])


class Person:
    """A user who is signed in, through the API that the page uses."""

    def __init__(self, url: str, account: Json) -> None:
        self.http = httpx2.Client(
            base_url=url, timeout=ANSWER_SECONDS, headers={"authorization": f"Bearer {account['token']}"}
        )
        self.id: str = account["id"]

    def close(self) -> None:
        self.http.close()

    def begin(self, chat: Chat, question: str, model: str) -> None:
        """Ask, as the page does: the answer is written to the chat."""
        message: Json = {"id": new_id(), "parentId": chat.leaf, "childrenIds": [], "role": "user", "content": question}
        body: Json = {
            "model": model,
            "stream": True,
            # Of a model that the page knows to count its tokens.
            "stream_options": {"include_usage": True},
            "messages": [{"role": "user", "content": question}],
            "parent_id": chat.leaf,
            "user_message": message | {"models": [model]},
            "tool_ids": [*chat.tools],
        }
        if chat.id:
            body["chat_id"] = chat.id
        self._begin(chat, body)

    def ask_again(self, chat: Chat) -> Json:
        """Another answer to the last question, as "Regenerate" asks for it."""
        self._begin(chat, chat.asked | {"chat_id": chat.id})
        return self.answer(chat)

    def _begin(self, chat: Chat, body: Json) -> None:
        chat.asked, answer = body, new_id()
        body = body | {"id": answer, "session_id": new_id()}
        begun = self.http.post("/api/chat/completions", json=body)
        assert begun.status_code == 200, begun.text
        chat.id, chat.leaf = begun.json()["chat_id"], answer

    def ask(self, chat: Chat, question: str, model: str) -> Json:
        """The whole answer to a question."""
        self.begin(chat, question, model)
        return self.answer(chat)

    def answer(self, chat: Chat) -> Json:
        """The last answer of the chat, when it is complete."""
        wait_until_blocking(lambda: self._shown(chat).get("done"), ANSWER_SECONDS, what="the answer")
        return self._shown(chat)

    def add_tool(self, name: str, code: str) -> None:
        """Give the page a tool of its own."""
        form: Json = {"id": name, "name": name, "content": code, "meta": {"description": name}}
        added = self.http.post("/api/v1/tools/create", json=form)
        assert added.status_code == 200, added.text

    def stop(self, chat: Chat) -> None:
        """Press Stop."""
        assert self.http.post(f"/api/tasks/chat/{chat.id}/stop").json()["status"]

    def title(self, chat: Chat, model: str) -> str:
        """What the model answers when it is asked for the title of the chat."""
        body = {"model": model, "chat_id": chat.id, "messages": [{"role": "user", "content": "What is 40 + 2?"}]}
        return self.http.post("/api/v1/tasks/title/completions", json=body).json()["choices"][0]["message"]["content"]

    def connect(self, connections: Sequence[Connection]) -> None:
        """Give the page these connections, as its administrator does."""
        wanted: Json = {
            "ENABLE_OPENAI_API": True,
            "OPENAI_API_BASE_URLS": [each.url for each in connections],
            "OPENAI_API_KEYS": [each.key for each in connections],
            "OPENAI_API_CONFIGS": {str(number): each.config for number, each in enumerate(connections)},
        }
        connected = self.http.post("/openai/config/update", json=wanted)
        assert connected.status_code == 200, connected.text

    def models(self) -> set[str]:
        return {each["id"] for each in self.http.get("/api/models", params={"refresh": True}).json()["data"]}

    def _shown(self, chat: Chat) -> Json:
        return self.http.get(f"/api/v1/chats/{chat.id}").json()["chat"]["history"]["messages"][chat.leaf]


@dataclass
class OpenWebUI:
    """The running page and two of its users, the first of which is its administrator."""

    people: tuple[Person, Person]


@contextmanager
def open_webui(program: Path, lines: str, env: Mapping[str, str]) -> Generator[OpenWebUI]:
    """The page as these lines of a shell start it, with two users, for as long as the block."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    with tempfile.TemporaryDirectory(prefix="open-webui-") as folder:
        own = {
            "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}",
            "PORT": str(port),
            "USE_SLIM_DOCKER": "true",
            "OFFLINE_MODE": "true",
            "ENABLE_OLLAMA_API": "false",
            "BYPASS_MODEL_ACCESS_CONTROL": "true",
            "DATA_DIR": folder,
            "WEBUI_SECRET_KEY": new_id(),
            "PYTHONDONTWRITEBYTECODE": "",
        }
        process = Process(["sh", "-euc", lines], env=own | dict(env), cwd=Path(folder))
        try:
            process.wait_ready(lambda: answers(f"{url}/health"), START_SECONDS)
            with closing(_signed_up(url, "signup", "ann")) as ann, closing(_signed_up(url, "add", "bob", ann)) as bob:
                yield OpenWebUI((ann, bob))
        finally:
            process.close()


def _signed_up(url: str, how: str, name: str, by: Person | None = None) -> Person:
    """The first user, or one whom that one has added."""
    account = {"name": name, "email": f"{name}@example.com", "password": new_id(), "role": "user"}
    with httpx2.Client(base_url=url, timeout=ANSWER_SECONDS, headers=by.http.headers if by else None) as http:
        signed_up = http.post(f"/api/v1/auths/{how}", json=account)
    assert signed_up.status_code == 200, signed_up.text
    return Person(url, signed_up.json())
