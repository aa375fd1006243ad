"""A large result whose engine is killed before it comes: another engine takes it, and goes on with the turn."""

import signal
from contextlib import suppress
from pathlib import Path

import httpx2
from redis import Redis

from deploy.local.ports import free_port
from plugins_contract.keys import Keys
from tests.marks import exhaustive, promise
from tests.support.replicas import QUICK_ENGINE
from tests.support.stack import running_stack

KEY = "a-key-of-sixteen-characters"
KILOBYTES = 900


@exhaustive("two engines on PostgreSQL")
@promise("a large result outlives the engine that waits for it", only_in_test_all="two engines on PostgreSQL")
def test_the_engine_that_waits_is_killed_and_another_one_has_the_result(tmp_path: Path) -> None:
    (keys := tmp_path / "request_keys").write_text("k" * 64)
    first_port, second_port = free_port(), free_port()
    shared = {"REQUEST_KEYS_FILE": str(keys), "ACCEPT_FIRST_LISTINGS": "true"}
    engine_env = {**shared, "API_KEYS": f"ada:{KEY}", "OPERATIONS_PORT": str(first_port)}
    worker_env = {**shared, "ENGINE_URL": f"http://127.0.0.1:{second_port}"}
    turn = ""
    with (
        running_stack(
            start=False, quick=True, database="postgres", worker_env=worker_env, engine_env=engine_env
        ) as stack,
        Redis.from_url(stack.redis.url) as redis,
    ):
        stack.http.headers["authorization"] = f"Bearer {KEY}"
        worker = stack.start_all_but_engines()
        first = stack.run_engine(stack.engine_port, "first", QUICK_ENGINE)
        stack.engine_env = {**engine_env, "OPERATIONS_PORT": str(second_port)}
        stack.run_engine(other := free_port(), "second", QUICK_ENGINE)
        stack.wait_for_tools()
        worker.send(signal.SIGSTOP)
        with suppress(httpx2.HTTPError), stack.asking(f"Give me a large result of {KILOBYTES} KB") as events:
            turn = next(events).data["turnId"]
            next(event for event in events if event.data.get("status") == "pending")
            first.send(signal.SIGKILL)
        worker.send(signal.SIGCONT)
        stack.http.base_url = f"http://127.0.0.1:{other}"
        said = stack.follow(turn)
        assert said.reason == "stop"
        step = said.steps("demo__large_result")[-1]
        assert len(stack.http.get(step["result"]["textUrl"]).text) == KILOBYTES * 1024
        assert stack.store.count("large_results") == 0
        assert (redis.memory_usage(Keys().response(step["correlationId"])) or 0) < 16 * 1024
