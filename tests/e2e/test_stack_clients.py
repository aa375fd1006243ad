"""Clients that people have already, unchanged from their packages, in front of two engines."""

import json
import os
import subprocess
import sys
from collections.abc import Generator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from plugins_contract.messages import new_id
from tests.marks import exhaustive, promise
from tests.support.node import install, node_binary
from tests.support.replicas import QUICK_ENGINE, Replica
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("needs Node 22, the npm registry and real processes")

FOLDER = Path(__file__).with_name("clients")
DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
ANN, BOB = ("ann-key-of-sixteen-characters", "bob-key-of-sixteen-characters")
MODEL = "openai:demo-scripted"
LONG = "Give me a long answer"


@dataclass(frozen=True)
class Client:
    """A program in `clients`, and the npm packages that it needs. The document has lines for it that begin with
    `imports`; those of `useChat` are in `test_stack_ai_sdk.py`. `decides`: its own user approves calls. `leaving`: what
    becomes of a turn whose connection it closes."""

    program: str
    packages: Sequence[str] = ()
    imports: str = ""
    decides: bool = False
    leaving: str = "cancelled"


CLIENTS = {
    "openai": Client("openai.mjs", ("openai@7",), 'import OpenAI from "openai"'),
    "openai-compatible": Client(
        "openai_compatible.mjs", ("@ai-sdk/openai-compatible@3", "ai@7"), "import { createOpenAICompatible }"
    ),
    "ai-sdk-react": Client("ai_sdk_react.mjs", ("@ai-sdk/react@4", "ai@7", "react@19"), decides=True, leaving="done"),
    "langchain": Client("langchain.py", imports="import os\nfrom langchain_openai"),
}


@contextmanager
def engine_of(stack: Stack, name: str) -> Generator[Replica]:
    engine = Replica(stack, name, program=QUICK_ENGINE)
    engine.http.headers["authorization"] = f"Bearer {ANN}"
    try:
        engine.wait_for_tools()
        yield engine
    finally:
        engine.close()
        stack.bury(engine.process)


@pytest.fixture(scope="module")
def engines() -> Generator[tuple[Replica, Replica]]:
    env = {"API_KEYS": f"ann:{ANN},bob:{BOB}"}
    options: dict[str, Any] = {"quick": True, "forked": True, "token_delay_ms": 30, "database": "postgres"}
    with running_stack(start=False, engine_env=env, **options) as stack:
        stack.start_all_but_engines()
        with engine_of(stack, "one") as one, engine_of(stack, "two") as two:
            yield one, two


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> "Running":
    wanted = CLIENTS[request.param]
    if not wanted.packages:
        return Running(wanted, [sys.executable, FOLDER / wanted.program])
    node = node_binary()
    folder: Path = pytestconfig.cache.mkdir(f"client-{request.param}")
    install(folder, *wanted.packages)
    return Running(wanted, [node, FOLDER / wanted.program, folder])


@dataclass(frozen=True)
class Running:
    """A client with the command that runs it."""

    kind: Client
    command: Sequence[str | Path]

    def ask(
        self,
        engines: Sequence[Replica],
        *questions: str,
        chat: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
        **own: Any,
    ) -> list[dict[str, Any]]:
        """What it shows for each question of a chat, which are asked at these engines in turn."""
        name = chat or new_id()
        asked = {
            "urls": [f"http://127.0.0.1:{engine.port}" for engine in engines],
            "key": ANN,
            "chat": name,
            "headers": {"X-Session-Id": name, **headers},
            "questions": questions,
            "model": MODEL,
            "cut": None,
            "approves": None,
        }
        done = subprocess.run(
            self.command, input=json.dumps(asked | own), capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


def newest(engine: Replica) -> list[dict[str, Any]]:
    """The messages of the session that has changed last."""
    [session, *_] = engine.http.get("/v1/sessions").json()["sessions"]
    return engine.messages(session["sessionId"])


def questions(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [each["content"] for each in messages if each["role"] == "user"]


def calls(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [call["status"] for each in messages for call in each.get("toolCalls", ())]


def status(engine: Replica, turn_id: str) -> str:
    return engine.http.get(f"/v1/turns/{turn_id}").json()["status"]


Engines = tuple[Replica, Replica]


@promise("clients that people have speak to two engines unchanged", only_in_test_all="needs Node and its packages")
def test_a_conversation_goes_on_at_the_other_engine_and_says_what_it_cost(client: Running, engines: Engines) -> None:
    first, second = client.ask(engines, "What is 2 + 3?", "What is 40 + 2?")
    assert "5" in first["text"]
    assert "42" in second["text"]
    assert min(first["tokens"], second["tokens"]) > 0
    assert questions(newest(engines[0])) == ["What is 2 + 3?", "What is 40 + 2?"]


def test_parallel_calls_are_in_the_answer(client: Running, engines: Engines) -> None:
    [answer] = client.ask(engines, "What time is it in Tokyo and in Paris?")
    assert "Tokyo" in answer["text"]
    assert "Paris" in answer["text"]
    assert calls(newest(engines[1])) == ["succeeded", "succeeded"]


@promise("clients that people have speak to two engines unchanged", only_in_test_all="needs Node and its packages")
@pytest.mark.parametrize("approves", [True, False], ids=["approved", "refused"])
def test_a_call_waits_for_its_user_and_the_answer_goes_on(client: Running, engines: Engines, approves: bool) -> None:
    here, there = engines
    token = new_id()
    question = f'call demo__delete_everything {{"token": "{token}"}}'

    def pending() -> list[dict[str, Any]]:
        return there.http.get("/v1/me/pending").json()["approvals"]

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(client.ask, [here], question, approves=approves)
        if not client.kind.decides:
            [call] = wait_until_blocking(pending, 60, what="the question")
            decision = {"decision": "approve", "hash": call["hash"]} if approves else {"decision": "refuse"}
            path = f"/v1/turns/{call['turnId']}/approvals/{call['correlationId']}"
            assert there.http.post(path, json=decision).status_code == 200
        [answer] = asking.result()
    assert answer["text"]
    assert calls(newest(there)) == ["succeeded" if approves else "refused"]
    assert len(here.stack.effects(token)) == int(approves)


def test_a_client_that_leaves_stops_the_answer_or_not_as_its_protocol_has_it_and_asks_on(
    client: Running, engines: Engines
) -> None:
    cut, after = client.ask(engines, LONG, "What is 40 + 2?", cut=0)
    assert "42" in after["text"]
    messages = newest(engines[1])
    assert questions(messages) == [LONG, "What is 40 + 2?"]
    assert status(engines[1], messages[0]["turnId"]) == client.kind.leaving
    assert messages[1]["content"].startswith(cut["text"])


def test_a_request_that_is_repeated_at_the_other_engine_begins_nothing(client: Running, engines: Engines) -> None:
    chat, key = new_id(), {"Idempotency-Key": new_id()}
    answers = [client.ask([engine], "What is 40 + 2?", chat=chat, headers=key) for engine in engines]
    assert answers[0] == answers[1]
    assert questions(newest(engines[0])) == ["What is 40 + 2?"]


@promise("a stream of another protocol that cannot go on breaks off: its client does not take it for the end")
def test_a_client_of_a_killed_engine_sees_an_error_and_the_answer_is_there(client: Running, engines: Engines) -> None:
    here, there = engines
    chat = new_id()

    def begun() -> list[dict[str, Any]]:
        sessions = there.http.get("/v1/sessions").json()["sessions"]
        return [each for each in sessions if each["title"] == LONG and each["runningTurnId"]]

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(client.ask, [here], LONG, chat=chat)
        [session] = wait_until_blocking(begun, 60, what="the turn")
        wait_until_blocking(lambda: status(there, session["runningTurnId"]) == "running", 10)
        here.process.kill()
        [broken] = asking.result()
    here.live_again()
    assert broken["error"]
    wait_until_blocking(lambda: status(there, session["runningTurnId"]) == "done", 60, what="the end")
    assert there.messages(session["sessionId"])[-1]["content"].endswith("an empty page.")


def test_an_error_is_shown_with_its_reason(client: Running, engines: Engines) -> None:
    [answer] = client.ask(engines, "Hi", model="none")
    assert "model" in answer["error"].lower()


def test_a_stranger_is_refused_and_another_subject_has_a_conversation_of_its_own(
    client: Running, engines: Engines
) -> None:
    chat = new_id()
    client.ask(engines, "What is 2 + 3?", chat=chat)
    [refused] = client.ask(engines, "Hi", chat=chat, key="nobody")
    assert "key" in refused["error"].lower()
    client.ask(engines, "What is 40 + 2?", chat=chat, key=BOB)
    here = engines[0]
    of_bob = {"authorization": f"Bearer {BOB}"}
    [session, *_] = here.http.get("/v1/sessions", headers=of_bob).json()["sessions"]
    shown = here.http.get(f"/v1/sessions/{session['sessionId']}/messages", headers=of_bob).json()["messages"]
    assert questions(shown) == ["What is 40 + 2?"]


def test_the_lines_of_the_document_run(client: Running, engines: Engines, tmp_path: Path) -> None:
    if not (begin := client.kind.imports):
        pytest.skip("test_stack_ai_sdk.py runs them")
    lines = begin + DOCUMENT.read_text().partition(begin)[2].partition("```")[0]
    url = f"http://127.0.0.1:{engines[0].port}"
    script = tmp_path / "lines.py"
    if client.kind.packages:
        script = Path(client.command[-1]) / "lines.mjs"
        lines = lines.replace("\n\n", f'\n\nconst engine = "{url}", key = "{ANN}";\n', 1)
    script.write_text(lines)
    own = {"CALLSTREAM_URL": url, "CALLSTREAM_KEY": ANN, "CALLSTREAM_MODEL": MODEL}
    done = subprocess.run(
        [client.command[0], script], env=os.environ | own, capture_output=True, text=True, timeout=60, check=False
    )
    assert "42" in done.stdout, done.stderr
