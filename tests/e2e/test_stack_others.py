"""The whole pair with parts that other people wrote: MCP servers, and another provider of the model's protocol."""

import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support.everything import everything_server
from tests.support.processes import Process, answers, free_port
from tests.support.stack import BIN, Stack, running_stack

RUN = ["pending", "queued", "running", "succeeded"]


@pytest.fixture(scope="module")
def everything() -> str:
    return everything_server()


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    for argv in (["init", "-q"], ["add", "hello.txt"]):
        (folder / "hello.txt").write_text("hello\n")
        subprocess.run(["git", "-C", str(folder), *argv], check=True, capture_output=True)
    return folder


@pytest.fixture(scope="module")
def over_http(everything: str) -> Generator[int]:
    port = free_port()
    process = Process(["node", everything, "streamableHttp"], env={"PORT": str(port)})
    yield port
    process.close()


@pytest.fixture(scope="module")
def stack(everything: str, over_http: int, repository: Path) -> Generator[Stack]:
    config = {
        "mcpServers": {
            "git": {"command": str(BIN / "mcp-server-git"), "args": ["--repository", str(repository)]},
            "local": {"command": "node", "args": [everything]},
            "remote": {"type": "http", "url": f"http://127.0.0.1:{over_http}/mcp"},
        }
    }
    with running_stack(config=config) as stack:
        yield stack


def test_the_git_server_reads_a_repository(stack: Stack, repository: Path) -> None:
    said = stack.ask(f'call git__git_status {{"repo_path": "{repository}"}}')
    assert said.statuses("git__git_status") == [RUN]
    assert "hello.txt" in said.text


@pytest.mark.parametrize("server", ["local", "remote"])
def test_the_everything_server_over_either_transport(stack: Stack, server: str) -> None:
    said = stack.ask(f'call {server}__echo {{"message": "to and fro"}}')
    assert said.statuses(f"{server}__echo") == [RUN]
    assert "Echo: to and fro" in said.text
    image = stack.ask(f"call {server}__get-tiny-image {{}}")
    (media,) = image.steps(f"{server}__get-tiny-image")[-1]["result"]["media"]
    assert stack.http.get(media["url"]).headers["content-type"] == "image/png"
    name = f"{server}__trigger-long-running-operation"
    slow = stack.ask(f'call {name} {{"duration": 1, "steps": 4}}')
    assert slow.statuses(name) == [["pending", "queued", "running", "progress", "succeeded"]]


def test_another_provider_with_other_habits_has_its_tools_called() -> None:
    port = free_port()
    provider = Process([sys.executable, "-m", "tests.support.other_provider", str(port)])
    try:
        provider.wait_ready(lambda: answers(f"http://127.0.0.1:{port}/"))
        config = {"mcpServers": {"demo": {"type": "http", "url": "${DEMO_MCP_URL}"}}}
        with running_stack(config=config, model_url=f"http://127.0.0.1:{port}/v1") as stack:
            said = stack.ask("Add something")
    finally:
        provider.close()
    assert said.statuses("demo__add") == [RUN, RUN]
    assert said.text == "The sums: 3, 42"
    assert said.reason == "stop"
