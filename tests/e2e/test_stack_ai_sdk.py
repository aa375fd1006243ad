"""The Vercel AI SDK, unchanged from its package, in front of the whole running product."""

import json
import re
import subprocess
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from dialog_engine.facades.ai_sdk.encoder import AiSdkEncoder, Version
from tests.marks import exhaustive, promise
from tests.support.node import install, node_binary
from tests.support.random_turns import TURN, RandomTurn, random_turns
from tests.support.stack import Stack, running_stack
from tests.support.ui_messages import Page
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("needs Node 22, the npm registry and real processes")

CLIENTS = Path(__file__).parents[2] / "docs" / "clients.md"
CLIENT = Path(__file__).with_name("ai_sdk_client.mjs")
APPROVING = [6, 7]

Run = Callable[[str], dict[str, Any]]


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(token_delay_ms=5) as stack:
        yield stack


@pytest.fixture(scope="module")
def node() -> str:
    return node_binary()


@pytest.fixture(scope="module", params=[5, 6, 7])
def version(request: pytest.FixtureRequest) -> int:
    return request.param


@pytest.fixture(scope="module")
def package(version: int, pytestconfig: pytest.Config) -> Path:
    """A folder with the newest `ai` of the version, kept for the next run."""
    folder: Path = pytestconfig.cache.mkdir(f"ai-{version}")
    install(folder, f"ai@{version}")
    return folder


@pytest.fixture(scope="module")
def run(stack: Stack, node: str, package: Path, version: int) -> Run:
    """What the page has after a scenario."""

    def ran(scenario: str) -> dict[str, Any]:
        command = [node, str(CLIENT), str(package), stack.url, str(version), scenario]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return ran


@promise("useChat of the AI SDK speaks to an engine unchanged", only_in_test_all="needs Node and its packages")
def test_a_chat_has_both_answers_and_what_they_cost(run: Run) -> None:
    shown = run("chat")
    assert (shown["status"], len(shown["messages"])) == ("ready", 4)
    assert "42" in shown["text"]
    assert shown["metadata"]["usage"]["outputTokens"] > 0
    assert shown["messages"][1]["metadata"]["sessionId"] == shown["metadata"]["sessionId"]


def test_parallel_calls_have_their_results(run: Run) -> None:
    shown = run("tools")
    assert [call["state"] for call in shown["calls"]] == ["output-available"] * 2
    assert all(call["providerExecuted"] for call in shown["calls"])
    assert "Tokyo" in shown["text"]
    assert "Paris" in shown["text"]


def test_progress_is_a_preliminary_output(run: Run) -> None:
    shown = run("progress")
    [call] = shown["calls"]
    assert shown["preliminary"]["total"] == 4
    assert (call["state"], call.get("preliminary")) == ("output-available", None)


@pytest.mark.parametrize("version", APPROVING, indirect=True)
def test_an_approved_call_runs_once_and_the_message_goes_on(run: Run, stack: Stack, version: int) -> None:
    shown = run("approve")
    assert [call["state"] for call in shown["asked"]] == ["approval-requested"]
    assert [call["state"] for call in shown["calls"]] == ["output-available"]
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert len(stack.effects(f"approve{version}")) == 1


@pytest.mark.parametrize("version", APPROVING, indirect=True)
def test_a_refused_call_is_denied_and_never_runs(run: Run, stack: Stack, version: int) -> None:
    shown = run("refuse")
    assert [call["state"] for call in shown["calls"]] == ["output-denied"]
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert stack.effects(f"refuse{version}") == []


def test_a_tool_of_the_page_runs_there_once_and_the_message_goes_on(run: Run) -> None:
    shown = run("client")
    assert shown["ran"] == [{"of": "tea"}]
    [part] = [part for part in shown["messages"][1]["parts"] if part["type"] == "tool-pick_colour"]
    assert (part["state"], part["output"]) == ("output-available", {"colour": "teal"})
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert "teal" in shown["text"]
    assert shown["metadata"]["reason"] == "stop"


def test_a_stop_ends_the_call_and_the_stream(run: Run) -> None:
    shown = run("stop")
    assert (shown["answer"], shown["status"], shown["metadata"]["reason"]) == (202, "ready", "cancelled")
    assert shown["calls"][0]["state"] == "output-error"


def test_a_page_that_was_cut_off_gets_the_whole_answer(run: Run) -> None:
    shown = run("resume")
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert [call["state"] for call in shown["calls"]] == ["output-available"]
    assert shown["metadata"]["reason"] == "stop"


def has_called(stack: Stack) -> bool:
    """Whether a turn runs, and its model has called a tool."""
    sessions = stack.http.get("/v1/sessions").json()["sessions"]
    running = [each["sessionId"] for each in sessions if each["runningTurnId"]]
    return any("toolCalls" in stack.http.get(f"/v1/sessions/{each}/messages").text for each in running)


@promise("a stream of another protocol that cannot go on breaks off: its client does not take it for the end")
def test_a_page_of_a_killed_engine_sees_an_error_and_then_the_whole_answer(run: Run, stack: Stack) -> None:
    with ThreadPoolExecutor(1) as thread:
        page = thread.submit(run, "restart")
        wait_until_blocking(lambda: has_called(stack), 60, what="the call")
        assert stack.engine
        stack.engine.kill()
        stack.bury(stack.engine)
        stack.start_engine()
        shown = page.result(timeout=100)

    assert shown["cut"]["status"] == "error"
    assert [call["state"] for call in shown["calls"]] == ["output-available"]
    assert (shown["status"], shown["metadata"]["reason"]) == ("ready", "stop")


def test_another_answer_takes_the_place_of_the_first(run: Run) -> None:
    shown = run("regenerate")
    assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
    assert shown["messages"][1]["id"] != shown["first"]
    assert "42" in shown["text"]


def test_an_error_is_shown_as_a_sentence(run: Run) -> None:
    shown = run("error")
    assert shown["status"] == "error"
    assert shown["error"].startswith("Model must be one of ")


def test_the_package_accepts_every_stream_and_shows_what_is_stored(
    node: str, package: Path, version: Version, tmp_path: Path
) -> None:
    streams: list[str] = []
    pages: list[Page] = []

    @settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
    @given(turn=random_turns())
    def encode(turn: RandomTurn) -> None:
        encoder = AiSdkEncoder(version)
        data = b"".join(output.data for frame in turn.frames for output in encoder.feed(frame))
        page = Page()
        page.read(data)
        streams.append(data.decode())
        pages.append(page)

    encode()
    file = tmp_path / "streams.json"
    file.write_text(json.dumps(streams))
    command = [node, str(CLIENT.with_name("ai_sdk_reader.mjs")), str(package), str(version), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    for shown, page in zip(json.loads(done.stdout), pages, strict=True):
        calls = [part["state"].removeprefix("tool-") for part in page.parts if part.get("providerExecuted")]
        assert shown == {"id": TURN, "text": page.text, "calls": calls}


@pytest.mark.parametrize("version", [7], indirect=True)
def test_the_lines_of_the_document_run(stack: Stack, node: str, package: Path) -> None:
    text = CLIENTS.read_text().partition("## Vercel AI SDK")[2]
    [lines, *_] = re.findall(r"```js\n(.*?)```", text, re.DOTALL)
    script = package / "lines.mjs"
    script.write_text(f'const engine = "{stack.url}", key = "a key";\n{lines}')
    done = subprocess.run([node, str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert "42" in done.stdout.splitlines()[-1], done.stderr
