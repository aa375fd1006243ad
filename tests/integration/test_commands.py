"""The command blocks of the documents, run in their order against the product: in containers, and as processes."""

import json
import os
import subprocess
import uuid
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from deploy.local.ports import free_port
from tests.marks import exhaustive, promise
from tests.support.documents import Block, Shell, blocks, clone
from tests.support.servers import docker_missing
from tests.support.stack import Stack, running_stack

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(600),
    pytest.mark.skipif(docker_missing() is not None, reason=str(docker_missing())),
    exhaustive("needs Docker"),
]
PROJECTS = ("compose", "secrets", "move")
BLOCKS = [block for stack in (*PROJECTS, "product") for block in blocks() if block.stack == stack]
STANDS_IN = "redis:8"
"""For Grafana, whose image is not at hand: its command lines are tested, not its dashboards."""

LETTERS = """
import asyncio, redis, sys
from plugins_contract.messages import ExecutionClass, ToolCallRequested, encode_request, new_id
keys = redis.Redis.from_url(open("/run/callstream/redis_url").read().strip())
for subject in ("me", "me", "ann"):
    call = new_id()
    request = ToolCallRequested(
        correlation_id=call, session_id="s", turn_id="t", turn=1, tool_call_id="c", tool_name="time__get_current_time",
        server="time", tool="get_current_time", arguments={"timezone": "Asia/Tokyo"}, mailbox="rpc.plugins.mailbox:x",
        response_channel=f"rpc.plugins.responses:{call}", deadline=1, subject=subject,
        execution_class=ExecutionClass.REPEATABLE,
    )
    print(keys.xadd("events.plugins.dead", {
        "event": encode_request(request), "correlationId": call, "starts": 3,
        "reason": "it was started 3 times, and each time its worker was lost",
    }).decode())
"""


class Project:
    """A project of Compose in a clone of its own, with a shell in it."""

    def __init__(self, folder: Path) -> None:
        self.name = f"callstream-test-{uuid.uuid4().hex[:8]}"
        port = free_port()
        env = {name: os.environ[name] for name in os.environ if name in ("PATH", "HOME") or name.startswith("DOCKER_")}
        env |= {
            "COMPOSE_PROJECT_NAME": self.name,
            "PORT": str(port),
            "PROMETHEUS_PORT": str(free_port()),
            "GRAFANA_PORT": str(free_port()),
            "GRAFANA_IMAGE": STANDS_IN,
            "OPENAI_API_KEY": "",
        }
        secrets = folder / "secrets"
        places = {
            "localhost:8000": f"localhost:{port}",
            "/etc/callstream": str(secrets),
            "-t callstream-": f"-t {self.name}-",
        }
        self.shell = Shell(clone(folder / "clone"), env, places)

    def containers(self) -> Counter[str]:
        """How many run of each service."""
        argv = ["docker", "ps", "--filter", f"label=com.docker.compose.project={self.name}", "--format"]
        label = '{{.Label "com.docker.compose.service"}}'
        return Counter(subprocess.run([*argv, label], capture_output=True, text=True, check=True).stdout.split())

    def close(self) -> None:
        """What it was made of goes with it."""
        self.shell.env |= {"COMPOSE_FILE": "docker-compose.yml"}
        self.shell.run(
            "unset COMPOSE_FILE; API_KEYS= docker compose --profile='*' down --volumes --rmi local --timeout 5"
            " || true; docker rmi $COMPOSE_PROJECT_NAME-engine $COMPOSE_PROJECT_NAME-worker || true"
        )


def dead_letters(project: Project) -> Mapping[str, str]:
    output = project.shell.run(f"docker compose exec -T worker python -c '{LETTERS}'")
    return {"ID": output.split()[0]}


def stopped(project: Project) -> Mapping[str, str]:
    project.shell.run("docker kill $(docker compose ps --quiet worker | head -n 1)")
    return {}


def sqlite(project: Project) -> Mapping[str, str]:
    project.shell.run(
        'echo "API_KEYS=me:a-key-for-tests-only" >> .env; docker compose up --build --wait;'
        ' echo "POSTGRES_PASSWORD=abc" >> .env'
    )
    return {}


SETUPS: dict[str, Callable[[Project], Mapping[str, str]]] = {
    "": lambda _: {}, "dead-letters": dead_letters, "stopped": stopped, "sqlite": sqlite,
    "model-key": lambda _: {"OPENAI_API_KEY": "a-key-of-a-model"},
}  # fmt: skip


@contextmanager
def project(folder: Path) -> Generator[Project]:
    made = Project(folder)
    try:
        yield made
    finally:
        made.close()


class Running:
    """The stack of the blocks that are run now: the one before ends when another begins."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ""
        self._open = ExitStack()
        self.project: Project | None = None
        self.product: Stack | None = None
        self._done: list[Block] = []

    def use(self, stack: str) -> None:
        """Begin it, unless it is there."""
        if stack == self._stack:
            return
        self.close()
        self._stack, self._done = stack, []
        if stack in PROJECTS:
            self.project = self._open.enter_context(project(self._folder / stack))
        else:
            self.product = self._open.enter_context(running_stack())

    def run(self, block: Block) -> str:
        """Run it on its project, after those before it which were not run there, as when pytest repeats failed tests.

        Returns its output."""
        assert self.project
        output = ""
        for each in BLOCKS[: BLOCKS.index(block) + 1]:
            if each.stack == block.stack and each not in self._done:
                self._done.append(each)
                output = run(self.project, each)
        return output

    def close(self) -> None:
        """End it."""
        self._open.close()


def run(project: Project, block: Block) -> str:
    project.shell.variables |= SETUPS[block.setup](project)
    text = block.text
    if block.language == "sql":
        text = f"docker compose exec -T postgres psql -U callstream -v ON_ERROR_STOP=1 <<'END'\n{text}END\n"
    return project.shell.run(text)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Generator[Running]:
    running = Running(tmp_path_factory.mktemp("commands"))
    try:
        yield running
    finally:
        running.close()


@promise("every block of commands in the documents for operators is run by a test")
@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"{block.stack}:{block.name}")
def test_a_block_does_what_the_document_says(running: Running, block: Block, tmp_path: Path) -> None:
    running.use(block.stack)
    if block.stack == "product":
        assert running.product
        shell = Shell(tmp_path, dict(os.environ), {"localhost:8000": f"localhost:{running.product.engine_port}"})
        shell.variables |= ids(running.product) if block.setup else {}
        output = shell.run(block.text)
    else:
        assert running.project
        output = running.run(block)
        containers = running.project.containers()
        assert {service: containers[service] for service, _ in block.containers} == dict(block.containers)
    assert block.expected in output, output


def ids(stack: Stack) -> dict[str, str]:
    """A session, its turn that waits for an approval, and the call."""
    with stack.asking("Delete everything") as events:
        for event in events:
            if event.name == "control" and event.data.get("status") == "asked":
                turn = json.loads(stack.http.get("/v1/sessions").text)["sessions"][0]
                return {"SESSION": turn["sessionId"], "TURN": turn["runningTurnId"], "CALL": event.data["toolCallId"]}
    raise AssertionError("nothing was asked")
