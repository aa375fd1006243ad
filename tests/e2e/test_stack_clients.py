"""Clients that people have already, unchanged from their packages, in front of two engines."""

import os
import signal
import subprocess
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from plugins_contract.messages import new_id
from tests.marks import exhaustive, promise
from tests.support.clients import ANN, CLIENTS, MODEL, Running, engine_of, running
from tests.support.replicas import Replica, read
from tests.support.stack import running_stack
from tests.support.transcript import Transcript
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("needs Node 22, the npm registry and real processes")

DOCUMENT = Path(__file__).parents[2] / "docs" / "clients.md"
BOB = "bob-key-of-sixteen-characters"
LONG = "Give me a long answer"
END_OF_LONG = "an empty page."
TOOL = {"name": "pick_colour", "description": "Picks a colour.", "inputSchema": {"type": "object"}}


@pytest.fixture(scope="module")
def engines() -> Generator[tuple[Replica, Replica]]:
    env = {"API_KEYS": f"ann:{ANN},bob:{BOB}"}
    options: dict[str, Any] = {"quick": True, "forked": True, "token_delay_ms": 30, "database": "postgres"}
    with running_stack(start=False, engine_env=env, **options) as stack:
        stack.start_all_but_engines()
        with engine_of(stack, "one") as one, engine_of(stack, "two") as two:
            yield one, two


@pytest.fixture(scope="module", params=CLIENTS)
def client(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> Running:
    return running(request.param, pytestconfig.cache.mkdir(f"client-{request.param}"))


def newest(engine: Replica) -> list[dict[str, Any]]:
    """The messages of the session that has changed last."""
    return transcript(engine)["messages"]


def transcript(engine: Replica) -> dict[str, Any]:
    """The same session as a whole."""
    [session, *_] = engine.http.get("/v1/sessions").json()["sessions"]
    return engine.http.get(f"/v1/sessions/{session['sessionId']}/messages").json()


def questions(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [each["content"] for each in messages if each["role"] == "user"]


def calls(messages: Sequence[dict[str, Any]]) -> list[str]:
    return [call["status"] for each in messages for call in each.get("toolCalls", ())]


def turn(engine: Replica, turn_id: str) -> dict[str, Any]:
    return engine.http.get(f"/v1/turns/{turn_id}").json()


def status(engine: Replica, turn_id: str) -> str:
    return turn(engine, turn_id)["status"]


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
    messages = newest(engines[1])
    assert calls(messages) == ["succeeded", "succeeded"]
    assert answer["tokens"] == turn(engines[1], messages[0]["turnId"])["usage"]["outputTokens"]  # of both rounds


@promise("clients that people have speak to two engines unchanged", only_in_test_all="needs Node and its packages")
@pytest.mark.parametrize("approves", [True, False], ids=["approved", "refused"])
def test_a_call_waits_for_its_user_and_the_answer_and_the_conversation_go_on(
    client: Running, engines: Engines, approves: bool
) -> None:
    here, there = engines
    token = new_id()
    question = f'call demo__delete_everything {{"token": "{token}"}}'
    after = "What is 40 + 2?"

    def pending() -> list[dict[str, Any]]:
        return there.http.get("/v1/me/pending").json()["approvals"]

    with ThreadPoolExecutor(1) as thread:
        # A client whose user decides says so to the other engine.
        asked = engines if client.kind.decides else [here]
        asking = thread.submit(client.ask, asked, question, after, approves=approves)
        if not client.kind.decides:
            [call] = wait_until_blocking(pending, 60, what="the question")
            decision = {"decision": "approve", "hash": call["hash"]} if approves else {"decision": "refuse"}
            path = f"/v1/turns/{call['turnId']}/approvals/{call['correlationId']}"
            assert there.http.post(path, json=decision).status_code == 200
        answer, last = asking.result()
    assert answer["text"]
    assert "42" in last["text"]
    assert questions(newest(there)) == [question, after]
    assert calls(newest(there))[0] == ("succeeded" if approves else "refused")
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


def test_a_client_that_was_cut_off_gets_the_whole_answer_at_the_other_engine(client: Running, engines: Engines) -> None:
    key = {"Idempotency-Key": new_id()}
    _, whole = client.ask(engines, LONG, LONG, headers=key, cut=0, again=1)
    stored = transcript(engines[0])
    assert questions(stored["messages"]) == [LONG]
    assert [len(each["siblings"]) for each in stored["turns"]] == [1]
    assert whole["text"] == stored["messages"][1]["content"]
    assert whole["text"].endswith(END_OF_LONG)


def test_a_stop_reaches_the_tool(client: Running, engines: Engines) -> None:
    token = new_id()
    client.ask(engines, f'call demo__slow_job {{"seconds": 60, "steps": 60, "token": "{token}"}}', cut=0, stops=True)
    messages = newest(engines[1])
    wait_until_blocking(lambda: status(engines[1], messages[0]["turnId"]) == "cancelled", 30)
    assert calls(newest(engines[1])) == ["cancelled"]
    job = engines[0].stack.effects
    wait_until_blocking(lambda: [each["status"] for each in job(token)] in ([], ["started", "cancelled"]), 10)


def test_a_tool_of_the_client_runs_there_once_and_the_turn_goes_on(client: Running, engines: Engines) -> None:
    [answer] = client.ask(engines, 'call pick_colour {"of": "tea"}', tool=TOOL)
    assert answer["ran"] == [{"of": "tea"}]
    assert "teal" in answer["text"]
    messages = newest(engines[0])
    assert questions(messages) == ['call pick_colour {"of": "tea"}']
    assert calls(messages) == ["succeeded"]


def test_a_request_that_is_repeated_at_the_other_engine_begins_nothing(client: Running, engines: Engines) -> None:
    chat, token, key = new_id(), new_id(), {"Idempotency-Key": new_id()}
    question = f'call demo__increment_counter {{"token": "{token}"}}'
    answers = [client.ask([engine], question, chat=chat, headers=key) for engine in engines]
    assert answers[0] == answers[1]
    assert questions(newest(engines[0])) == [question]
    assert len(engines[0].stack.effects(token)) == 1


@promise("a stream of another protocol that cannot go on breaks off: its client does not take it for the end")
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "restarted"])
def test_a_client_whose_engine_ends_in_mid_answer_sees_an_error_and_the_answer_is_there(
    client: Running, engines: Engines, end: signal.Signals
) -> None:
    here, there = engines
    chat = new_id()

    def begun() -> list[dict[str, Any]]:
        sessions = there.http.get("/v1/sessions").json()["sessions"]
        return [each for each in sessions if each["title"] == LONG and each["runningTurnId"]]

    with ThreadPoolExecutor(1) as thread:
        asking = thread.submit(client.ask, [here], LONG, chat=chat)
        [session] = wait_until_blocking(begun, 60, what="the turn")
        read(there.http, session["runningTurnId"], Transcript(), until=lambda event: event.name == "text")
        here.process.send(end)
        [broken] = asking.result()
    wait_until_blocking(lambda: here.process.returncode is not None, 30, what="the end of the engine")
    here.live_again()
    assert broken["error"]
    wait_until_blocking(lambda: status(there, session["runningTurnId"]) == "done", 60, what="the end")
    assert there.messages(session["sessionId"])[-1]["content"].endswith(END_OF_LONG)


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
    assert questions(newest(here)) == ["What is 2 + 3?"]


def test_the_lines_of_the_document_run(client: Running, engines: Engines, tmp_path: Path) -> None:
    if not (begin := client.kind.imports):
        pytest.skip("other tests run them")
    lines = begin + DOCUMENT.read_text().partition(begin)[2].partition("```")[0]
    url = f"http://127.0.0.1:{engines[0].port}"
    script = tmp_path / "lines.py"
    if client.kind.packages:
        script = client.packages / "lines.mjs"
        lines = lines.replace("\n\n", f'\n\nconst engine = "{url}", key = "{ANN}";\n', 1)
    script.write_text(lines)
    own = {"CALLSTREAM_URL": url, "CALLSTREAM_KEY": ANN, "CALLSTREAM_MODEL": MODEL}
    done = subprocess.run(
        [client.command[0], script], env=os.environ | own, capture_output=True, text=True, timeout=60, check=False
    )
    assert "42" in done.stdout, done.stderr
