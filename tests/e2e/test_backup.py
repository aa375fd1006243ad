"""Backup and restore as docs/operations.md says: a backup while the engine runs, a restore with everything stopped."""

import sqlite3
import subprocess
from collections.abc import Generator
from contextlib import closing
from pathlib import Path

import pytest
from redis import Redis

from tests.support.postgres import binary
from tests.support.stack import DATABASE, Stack, running_stack
from tests.support.store import Kind

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(params=["sqlite", "postgres"])
def stack(request: pytest.FixtureRequest) -> Generator[Stack]:
    kind: Kind = request.param
    with running_stack(database=kind) as stack:
        yield stack


def back_up(stack: Stack, file: Path) -> None:
    if stack.postgres:
        url = stack.postgres.url_of(DATABASE)
        subprocess.run([binary("pg_dump"), "--format=custom", f"--file={file}", url], check=True, timeout=60)
        return
    with closing(sqlite3.connect(stack.folder / "engine.sqlite3")) as live, closing(sqlite3.connect(file)) as copy:
        live.backup(copy)


def restore(stack: Stack, file: Path) -> None:
    if stack.postgres:
        url = stack.postgres.url_of(DATABASE)
        options = ["--clean", "--if-exists", "--no-owner", f"--dbname={url}"]
        subprocess.run([binary("pg_restore"), *options, file], check=True, timeout=60)
        return
    for old in stack.folder.glob("engine.sqlite3*"):
        old.unlink()
    file.rename(stack.folder / "engine.sqlite3")


def sessions(stack: Stack) -> set[str]:
    return {session["sessionId"] for session in stack.http.get("/v1/sessions").json()["sessions"]}


def session_of(stack: Stack, message: str) -> str:
    said = stack.ask(message)
    assert said.reason == "stop"
    return str(said.events[0].data["sessionId"])


def test_a_restored_backup_has_what_was_said_before_it_and_goes_on(stack: Stack, tmp_path: Path) -> None:
    before = session_of(stack, "What is 17 * 23?")
    back_up(stack, tmp_path / "backup")
    after = session_of(stack, "hello")
    assert sessions(stack) == {before, after}

    assert stack.engine
    for process in (stack.engine, *stack.workers.values()):
        process.stop()
    restore(stack, tmp_path / "backup")
    with Redis.from_url(stack.redis.url) as redis:
        redis.flushdb()
    stack.start_worker()
    stack.start_engine()
    stack.wait_for_tools()

    assert sessions(stack) == {before}
    messages = stack.http.get(f"/v1/sessions/{before}/messages").json()["messages"]
    assert "391" in messages[-1]["content"]
    again = stack.ask("What is 3 * 7?", before)
    assert "21" in again.text
