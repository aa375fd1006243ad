"""Backup and restore under load, by the commands of docs/operations.md."""

import json
import subprocess
import threading
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest
from redis import Redis

from tests.marks import exhaustive, promise
from tests.support.postgres import binary
from tests.support.stack import BIN, DATABASE, Stack, running_stack
from tests.support.store import Kind
from tests.support.waiting import wait_until_blocking

pytestmark = [pytest.mark.timeout(300), exhaustive("real processes that are stopped and started again")]
USERS = 6
COUNT = "Increment the counter, answering after 2 seconds, with token {token}"


@pytest.fixture(params=["sqlite", "postgres"])
def stack(request: pytest.FixtureRequest) -> Generator[Stack]:
    kind: Kind = request.param
    # Two calls run, two wait in Redis, and the others were never offered when the backup is made.
    with running_stack(
        database=kind, engine_env={"SUBJECT_WINDOW": "2"}, worker_env={"WORKER_CONCURRENCY": "2"}
    ) as stack:
        yield stack


def dialog_engine(stack: Stack, command: str, **streams: Any) -> None:
    argv = [BIN / "dialog-engine", command]
    subprocess.run(argv, env=stack.store.env, cwd=stack.folder, check=True, timeout=60, **streams)


def back_up(stack: Stack, file: Path) -> None:
    with file.open("wb") as output:
        if stack.postgres:
            argv = [binary("pg_dump"), "--format=custom", stack.postgres.url_of(DATABASE)]
            subprocess.run(argv, check=True, timeout=60, stdout=output)
        else:
            dialog_engine(stack, "backup", stdout=output)


def restore(stack: Stack, file: Path) -> None:
    if not stack.postgres:
        with file.open("rb") as backup:
            dialog_engine(stack, "restore", stdin=backup)
        return
    options = ["--clean", "--if-exists", "--no-owner", f"--dbname={stack.postgres.url_of(DATABASE)}"]
    subprocess.run([binary("pg_restore"), *options, file], check=True, timeout=60)
    dialog_engine(stack, "restored")


@contextmanager
def load(stack: Stack) -> Generator[None]:
    """Users who ask for a `once` call, again and again, until the engine is gone."""
    over = threading.Event()

    def ask(user: int) -> None:
        number = 0
        with httpx2.Client(base_url=stack.url, timeout=60) as http, suppress(httpx2.HTTPError):
            while not over.is_set():
                number += 1
                http.post("/v1/chat", json={"message": COUNT.format(token=f"u{user}n{number}")}).raise_for_status()

    users = [threading.Thread(target=ask, args=(user,)) for user in range(USERS)]
    for user in users:
        user.start()
    try:
        yield
    finally:
        over.set()
        for user in users:
            user.join()


def contents(stack: Stack) -> set[tuple[Any, ...]]:
    """The sessions and the messages, as far as a turn that continues leaves them as they are."""
    messages = stack.store.rows("SELECT session_id, number, role, content FROM messages WHERE interrupted = 0")
    return {*messages, *stack.store.rows("SELECT session_id, title, subject FROM sessions")}


def tokens(stack: Stack) -> set[str]:
    return {
        json.loads(arguments).get("token", "") for (arguments,) in stack.store.rows("SELECT arguments FROM tool_calls")
    }


def effects(stack: Stack) -> Counter[str]:
    return Counter(json.loads(line)["token"] for line in stack.effect_log.read_text().splitlines())


@promise("a restored backup has its sessions and messages, continues, and runs no once call twice")
def test_a_restore_under_load_has_what_the_backup_has_and_runs_no_once_call_twice(stack: Stack, tmp_path: Path) -> None:
    first = stack.ask("What is 17 * 23?")
    session = str(first.events[0].data["sessionId"])
    with load(stack):
        held = "SELECT event_id FROM outbox WHERE offered_to = ''"
        wait_until_blocking(lambda: len(stack.store.rows(held)) > 1, 60, what="calls that are held back")
        back_up(stack, tmp_path / "backup")
        at_backup = set(stack.store.rows("SELECT event_id FROM outbox WHERE event_type = 'PluginToolCallRequested'"))
        wait_until_blocking(
            lambda: not at_backup & set(stack.store.rows("SELECT event_id FROM outbox")),
            60,
            what="the end of the calls",
        )
        assert stack.engine
        for process in (stack.engine, *stack.workers.values()):
            process.kill()
    stack.workers.clear()

    restore(stack, tmp_path / "backup")
    before, calls = contents(stack), tokens(stack)
    open_calls = stack.store.rows("SELECT correlation_id FROM tool_calls WHERE outcome IS NULL")
    assert len(open_calls) > 1
    with Redis.from_url(stack.redis.url) as redis:
        redis.flushdb()
    stack.start_worker()
    stack.start_engine()
    stack.wait_for_tools()

    wait_until_blocking(
        lambda: not stack.store.count("turns WHERE status = 'running'"), 120, what="the end of all turns"
    )
    assert contents(stack) >= before
    assert {token: count for token, count in effects(stack).items() if token in calls and count > 1} == {}
    messages = stack.http.get(f"/v1/sessions/{session}/messages").json()["messages"]
    assert "391" in messages[-1]["content"]
    assert "21" in stack.ask("What is 3 * 7?", session).text
