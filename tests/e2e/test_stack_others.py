"""The whole pair with parts that other people wrote: MCP servers, and another provider of the model's protocol."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from deploy.local.ports import free_port
from tests.integration.servers import accepts
from tests.marks import exhaustive, promise
from tests.support.everything import everything_server
from tests.support.processes import Process, answers
from tests.support.stack import BIN, Stack, running_stack

pytestmark = exhaustive("providers and MCP servers of others, with real processes")

DEMO = {"mcpServers": {"demo": {"type": "http", "url": "${DEMO_MCP_URL}"}}}
RUN = ["pending", "queued", "succeeded"]


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
    process.wait_ready(lambda: accepts(port))
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
    assert said.quick_statuses("git__git_status") == [RUN]
    assert "hello.txt" in said.text


@pytest.mark.parametrize("server", ["local", "remote"])
def test_the_everything_server_over_either_transport(stack: Stack, server: str) -> None:
    said = stack.ask(f'call {server}__echo {{"message": "to and fro"}}')
    assert said.quick_statuses(f"{server}__echo") == [RUN]
    assert "Echo: to and fro" in said.text
    image = stack.ask(f"call {server}__get-tiny-image {{}}")
    (media,) = image.steps(f"{server}__get-tiny-image")[-1]["result"]["media"]
    assert stack.http.get(media["url"]).headers["content-type"] == "image/png"
    name = f"{server}__trigger-long-running-operation"
    slow = stack.ask(f'call {name} {{"duration": 1, "steps": 4}}')
    assert slow.statuses(name) == [["pending", "queued", "running", "progress", "succeeded"]]


@contextmanager
def provider(module: str) -> Generator[str]:
    """Another provider of the model's protocol, and its URL."""
    port = free_port()
    process = Process([sys.executable, "-m", f"tests.support.{module}", str(port)])
    try:
        process.wait_ready(lambda: answers(f"http://127.0.0.1:{port}/"))
        yield f"http://127.0.0.1:{port}/v1"
    finally:
        process.close()


@pytest.fixture(scope="module")
def parts() -> Generator[Stack]:
    """All parts but an engine and its model."""
    with running_stack(start=False, config=DEMO) as stack:
        stack.redis.start()
        stack.start_demo()
        stack.start_worker()
        yield stack


@contextmanager
def engine_of(parts: Stack, url: str, **env: str) -> Generator[Stack]:
    """The stack with an engine whose model is the one at this URL."""
    parts.model_url, parts.engine_env = url, env
    engine = parts.start_engine()
    try:
        parts.wait_for_tools()
        yield parts
    finally:
        parts.bury(engine)


def test_another_provider_with_other_habits_has_its_tools_called(parts: Stack) -> None:
    with provider("other_provider") as url, engine_of(parts, url) as stack:
        said = stack.ask("Add something")
    assert said.quick_statuses("demo__add") == [RUN, RUN]
    assert said.text == "The sums: 3, 42"
    assert said.reason == "stop"


@promise("TOOL_MODE=auto falls back when the provider rejects tools")
@pytest.mark.parametrize(("stop", "sums"), [("true", ["3"]), ("false", ["3", "42"])])
def test_a_provider_that_rejects_tools_has_them_called_by_tags(parts: Stack, stop: str, sums: list[str]) -> None:
    """A stop sequence ends its reply with its first call; without one, what it invents after its calls is dropped."""
    with provider("tag_provider") as url, engine_of(parts, url, TOOL_STOP_SEQUENCE=stop) as stack:
        said = stack.ask("Add something")
        again = stack.ask("Add something else")
    for each in (said, again):
        assert each.quick_statuses("demo__add") == [RUN] * len(sums)
        assert each.text == f"I would write `<tool_use>`, so:\n\nThe sums: {', '.join(sums)}"
        assert each.reason == "stop"


@promise("Anthropic messages")
@pytest.mark.parametrize("models", ["claude", "busy,claude"], ids=["at once", "after an overloaded one"])
def test_anthropic_messages_have_tools_called(parts: Stack, models: str) -> None:
    """A strict server with Anthropic's API, through engine, Redis, worker and MCP server, also as the fallback."""
    with provider("anthropic_provider") as url:
        first, *others = models.split(",")
        env = {
            "LLM_PROVIDER": "anthropic",
            "ANTHROPIC_BASE_URL": url.removesuffix("/v1"),
            "ANTHROPIC_MODEL": first,
            "LLM_FALLBACKS": ",".join(f"anthropic:{each}" for each in others),
        }
        with engine_of(parts, url, **env) as stack:
            said = stack.ask("Add something")
            session_id = said.events[0].data["sessionId"]
            again = stack.ask("Add something else", session_id)
    for each in (said, again):
        assert each.quick_statuses("demo__add") == [RUN, RUN]
        assert each.text == "Let me add.The sums: 3, 42"
        assert (each.reason, each.events[-1].data["model"]) == ("stop", "anthropic:claude")
