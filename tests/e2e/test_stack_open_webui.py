"""Open WebUI, unchanged from its package, in front of two engines: `OPEN_WEBUI=1 make test-all ARGS=…` runs it."""

import os
import re
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import httpx2
import jwt
import pytest

from plugins_contract.messages import new_id
from tests.marks import exhaustive, promise
from tests.support.clients import ANN, MODEL, engine_of
from tests.support.open_webui import Chat, Connection, OpenWebUI, Person, install, open_webui
from tests.support.replicas import Replica, read
from tests.support.stack import running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

pytestmark = [
    exhaustive("installs more than a gigabyte from PyPI"),
    pytest.mark.skipif("OPEN_WEBUI" not in os.environ, reason="set OPEN_WEBUI=1: it installs more than a gigabyte"),
    pytest.mark.timeout(1200),
]

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
SECRET = "s" * 64
LONG = "Give me a long answer"
HERE, THERE, NOBODY = (f"{each}.{MODEL}" for each in ("here", "there", "nobody"))
NOWHERE = "nowhere.none"
"""The model at both engines, at one with a key that it does not know, and one that it does not have."""
COLOURS = '''
class Tools:
    def pick_colour(self, of: str) -> str:
        """
        Picks a colour.
        :param of: What it is for.
        """
        return "teal"
'''
Engines = tuple[Replica, Replica]


@pytest.fixture(scope="module")
def engines() -> Generator[Engines]:
    env = {"API_KEYS": f"page:{ANN}", "OPENWEBUI_JWT_SECRET": SECRET}
    options: dict[str, Any] = {"quick": True, "forked": True, "token_delay_ms": 30, "database": "postgres"}
    with running_stack(start=False, engine_env=env, **options) as stack:
        stack.start_all_but_engines()
        with engine_of(stack, "here") as here, engine_of(stack, "there") as there:
            yield here, there


@pytest.fixture(scope="module")
def page(engines: Engines, pytestconfig: pytest.Config) -> Generator[OpenWebUI]:
    here, there = (f"http://127.0.0.1:{engine.port}" for engine in engines)
    program = install(pytestconfig.cache.mkdir("open-webui"))
    [lines, *_] = re.findall(r"```sh\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    env = {"CALLSTREAM_URL": here, "CALLSTREAM_KEY": ANN, "OPENWEBUI_JWT_SECRET": SECRET}
    with open_webui(program, lines, env) as page:
        assert MODEL in page.people[0].models()
        page.people[0].connect(
            [
                Connection("here", f"{here}/v1", ANN),
                Connection("there", f"{there}/v1", ANN),
                Connection("nowhere", f"{here}/v1", ANN, ["none"]),
                Connection("nobody", f"{here}/v1", "nobody", [MODEL]),
            ]
        )
        assert {HERE, THERE} <= page.people[0].models()
        yield page


@pytest.fixture(scope="module")
def ann(page: OpenWebUI) -> Person:
    return page.people[0]


def seen_by(person: Person, engine: Replica) -> httpx2.Client:
    """The engine's own API, for this person, whom the page names in a token."""
    token = jwt.encode({"sub": person.id, "exp": time.time() + 600}, SECRET, algorithm="HS256")
    engine.http.headers["x-openwebui-user-jwt"] = token
    return engine.http


def sessions(person: Person, engine: Replica) -> list[dict[str, Any]]:
    return seen_by(person, engine).get("/v1/sessions").json()["sessions"]


def newest(person: Person, engine: Replica) -> list[dict[str, Any]]:
    """The messages of the session of this person that has changed last."""
    return engine.messages(sessions(person, engine)[0]["sessionId"])


def running(person: Person, engine: Replica) -> str:
    """The turn of this person that runs."""
    return wait_until_blocking(lambda: sessions(person, engine)[0]["runningTurnId"], what="the turn")


def status(engine: Replica, turn_id: str) -> str:
    return engine.http.get(f"/v1/turns/{turn_id}").json()["status"]


def questions(stored: list[dict[str, Any]]) -> list[str]:
    return [each["content"] for each in stored if each["role"] == "user"]


def calls(stored: list[dict[str, Any]]) -> list[str]:
    return [call["status"] for each in stored for call in each.get("toolCalls", ())]


@promise("Open WebUI speaks to two engines unchanged", only_in_test_all="installs more than a gigabyte")
def test_a_chat_with_calls_goes_on_at_the_other_engine(ann: Person, engines: Engines) -> None:
    chat = Chat()
    asked = ["What time is it in Tokyo and in Paris?", "What is 40 + 2?"]
    assert "Tokyo" in ann.ask(chat, asked[0], HERE)["content"]
    assert "42" in ann.ask(chat, asked[1], THERE)["content"]
    stored = newest(ann, engines[0])
    assert questions(stored) == asked
    assert calls(stored)[:2] == ["succeeded", "succeeded"]


def test_an_answer_is_asked_for_again_and_says_what_it_has_used(ann: Person, engines: Engines) -> None:
    chat = Chat()
    answers = [ann.ask(chat, "What is 40 + 2?", HERE), ann.ask_again(chat)]
    session_id = sessions(ann, engines[1])[0]["sessionId"]
    stored = engines[1].http.get(f"/v1/sessions/{session_id}/messages").json()
    assert questions(stored["messages"]) == ["What is 40 + 2?"]
    assert [len(turn["siblings"]) for turn in stored["turns"]] == [len(answers)]
    for answer in answers:
        assert "42" in answer["content"]
        assert answer["usage"]["total_tokens"] > answer["usage"]["completion_tokens"] > 0


def test_a_title_is_made_without_tools_and_is_no_conversation(ann: Person, engines: Engines) -> None:
    chat = Chat()
    ann.ask(chat, "What is 40 + 2?", HERE)
    before = sessions(ann, engines[0])
    assert "No tools are offered" in ann.title(chat, HERE)
    assert sessions(ann, engines[0]) == before


@pytest.mark.parametrize("approves", [True, False], ids=["approved", "refused"])
def test_a_call_waits_until_its_user_has_decided_natively(ann: Person, engines: Engines, approves: bool) -> None:
    here, there = engines
    chat, token = Chat(), new_id()
    ann.begin(chat, f'call demo__delete_everything {{"token": "{token}"}}', HERE)
    http = seen_by(ann, there)
    [call] = wait_until_blocking(lambda: http.get("/v1/me/pending").json()["approvals"], what="the question")
    decision = {"decision": "approve", "hash": call["hash"]} if approves else {"decision": "refuse"}
    path = f"/v1/turns/{call['turnId']}/approvals/{call['correlationId']}"
    assert http.post(path, json=decision).status_code == 200
    assert ann.answer(chat)["content"]
    assert calls(newest(ann, there)) == ["succeeded" if approves else "refused"]
    assert len(here.stack.effects(token)) == int(approves)


def test_stop_reaches_the_tool(ann: Person, engines: Engines) -> None:
    here = engines[0]
    chat, token = Chat(), new_id()
    ann.begin(chat, f'call demo__slow_job {{"seconds": 60, "steps": 60, "token": "{token}"}}', HERE)
    here.stack.wait_for_effect(token)
    turn_id = running(ann, here)
    ann.stop(chat)
    wait_until_blocking(lambda: status(here, turn_id) == "cancelled", what="the end of the turn")
    wait_until_blocking(lambda: [each["status"] for each in here.stack.effects(token)] == ["started", "cancelled"])
    assert "42" in ann.ask(chat, "What is 40 + 2?", THERE)["content"]
    assert len(questions(newest(ann, here))) == 2


def test_a_tool_of_the_page_runs_there_and_the_turn_goes_on(ann: Person, engines: Engines) -> None:
    ann.add_tool("colours", COLOURS)
    chat = Chat(tools=["colours"])
    assert "teal" in ann.ask(chat, 'call pick_colour {"of": "tea"}', HERE)["content"]
    assert calls(newest(ann, engines[1])) == ["succeeded"]


def test_the_users_of_the_page_have_conversations_of_their_own(page: OpenWebUI, engines: Engines) -> None:
    for person, question in zip(page.people, ("What is 2 + 3?", "What is 3 + 4?"), strict=True):
        person.ask(Chat(), question, HERE)
    assert [questions(newest(person, engines[1])) for person in page.people] == [["What is 2 + 3?"], ["What is 3 + 4?"]]
    assert len(sessions(page.people[1], engines[1])) == 1


def test_an_engine_is_restarted_in_mid_answer_and_the_chat_goes_on(ann: Person, engines: Engines) -> None:
    here, there = engines
    chat = Chat()
    ann.begin(chat, LONG, HERE)
    turn_id = running(ann, there)
    read(there.http, turn_id, Transcript(), until=lambda event: event.name == "text")
    here.process.send(signal.SIGTERM)
    shown = ann.answer(chat)
    wait_until_blocking(lambda: here.process.returncode is not None, what="the end of the engine")
    here.live_again()
    wait_until_blocking(lambda: status(there, turn_id) == "done", 60, what="the end of the turn")
    assert newest(ann, there)[-1]["content"].startswith(shown["content"])
    assert shown["error"]
    assert "42" in ann.ask(chat, "What is 40 + 2?", HERE)["content"]
    assert questions(newest(ann, there)) == [LONG, "What is 40 + 2?"]


@pytest.mark.parametrize(("model", "why"), [(NOWHERE, "model"), (NOBODY, "key")], ids=["an error", "a stranger"])
def test_what_is_refused_is_shown_with_its_reason(ann: Person, model: str, why: str) -> None:
    assert why in ann.ask(Chat(), "Hi", model)["error"]["content"].lower()
