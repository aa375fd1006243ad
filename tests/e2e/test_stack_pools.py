"""Two pools of workers, on a node of a Redis Cluster: what operators and users do with the calls of one pool."""

import json
import os
import subprocess
from collections.abc import Generator
from functools import partial
from typing import Any

import pytest
from redis import Redis

from deploy.local.ports import free_port
from plugins_contract.keys import Keys
from plugins_contract.messages import ExecutionClass, ToolCallRequested, encode_request, new_id
from tests.marks import exhaustive
from tests.support.servers import LocalServer, embedded_binary
from tests.support.stack import BIN, Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = exhaustive("contract/test_pools.py and integration/test_pools.py have it without processes")

KEYS = Keys("{callstream}:")
SECRET = "the-hidden-marzipan"


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    """The tools of `time` and of `demo` at a worker each."""
    env = {"REDIS_KEY_PREFIX": KEYS.prefix}
    with running_stack(start=False, worker_env=env, engine_env=env) as stack:
        folder = stack.folder / "cluster"
        folder.mkdir()
        options = ("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
        stack.redis = LocalServer(embedded_binary(), folder, *options)
        stack.redis.start()
        with client(stack) as redis:
            redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            wait_until_blocking(lambda: b"cluster_state:ok" in redis.execute_command("CLUSTER", "INFO"))
            stack.start_demo()
            stack.start_model()
            for name, server in json.loads(stack.config_path.read_text())["mcpServers"].items():
                stack.config_path = stack.folder / f"{name}.json"  # a worker takes over a changed file
                stack.config_path.write_text(json.dumps({"mcpServers": {name: server}}))
                stack.start_worker()
            stack.start_engine()
            stack.wait_for_tools("time", "demo")
            wait_until_blocking(lambda: redis.hlen(KEYS.pools) == 2, what="both pools")
        yield stack


@pytest.fixture
def redis(stack: Stack) -> Generator[Any]:
    with client(stack) as redis:
        yield redis


def client(stack: Stack) -> Any:
    return Redis.from_url(stack.redis.url)


def run(stack: Stack, program: str, *words: str) -> str:
    env = {"REDIS_URL": stack.redis.url, "REDIS_KEY_PREFIX": KEYS.prefix, **stack.store.env}
    done = subprocess.run(
        [BIN / program, *words], env={**os.environ, **env}, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_nothing_is_left_in_a_pool_of_a_session_that_is_erased(stack: Stack, redis: Any) -> None:
    session = stack.http.post("/v1/sessions").json()["sessionId"]
    stack.ask(f"Increment the counter, with token {SECRET}", session)
    # The log of a turn is written a moment after its client has it.
    wait_until_blocking(lambda: any(SECRET in str(redis.xrange(key)) for key in redis.scan_iter(_type="stream")))
    wait_until_blocking(lambda: stack.http.delete(f"/v1/sessions/{session}").status_code == 404, 60, what="its end")
    for key in redis.scan_iter():
        kind = redis.type(key)
        assert SECRET not in str(
            redis.xrange(key) if kind == b"stream" else redis.hgetall(key) if kind == b"hash" else ""
        )


def test_dead_letters_that_run_again_reach_the_pool_of_their_server(stack: Stack, redis: Any) -> None:
    for number in range(2):
        call = new_id()
        request = ToolCallRequested(
            correlation_id=call, session_id="s", turn_id="t", turn=1, tool_call_id="c", tool_name="demo__calculate",
            server="demo", tool="calculate", arguments={"expression": f"6 * {number}"}, mailbox=KEYS.mailbox("x"),
            response_channel=KEYS.response(call), deadline=1, execution_class=ExecutionClass.REPEATABLE,
            subject="local",
        )  # fmt: skip
        redis.xadd(KEYS.dead, {"event": encode_request(request), "correlationId": call, "starts": 3, "reason": "x"})
        run(stack, "plugins-mcp", "dead", "requeue", call, "--yes", "--wait")
    assert redis.xlen(KEYS.dead) == 0
    wait_until_blocking(partial(nothing_waits, redis))


def nothing_waits(redis: Any) -> bool:
    """Whether no stream holds a request."""
    pools: list[bytes] = [*redis.scan_iter(KEYS.requests_of("*"))]
    return not any(redis.xlen(stream) for stream in (KEYS.requests, *pools))
