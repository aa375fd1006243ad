"""`plugins-mcp dead …`: what operators and their scripts see."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import anyio
import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ToolCallRequested, decode_request
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.integration.demo import Demo
from tests.marks import exhaustive, promise
from tests.support import operators
from tests.support.operators import Answer, Terminal, environment
from tests.support.stack import BIN
from tests.support.waiting import wait_until, wait_until_is
from tests.support.working import Caller, calling, working

REASON = "it was started 3 times, and each time its worker was lost"
EXHAUSTED = ToolOutcome.failure(CallState.DEAD, ErrorCode.UNKNOWN_ERROR, REASON)
DONE, NOT_DONE, WRONG, UNREACHABLE = 0, 1, 2, 3


class Operator(operators.Operator):
    """One who deals with dead letters."""

    async def dead(self, *words: str, **options: Any) -> Answer:
        return await self.run("dead", *words, **options)


@pytest.fixture
async def caller(redis_url: str) -> AsyncGenerator[Caller]:
    async with calling(redis_url) as caller:
        await caller.open()
        yield caller


@pytest.fixture
def operator(redis_url: str, tmp_path: Path) -> Operator:
    return Operator(redis_url, tmp_path)


@pytest.fixture
def servers_file(demo: Demo, tmp_path: Path) -> Path:
    """Of a worker for the demo server."""
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"demo": {"url": demo.url}}}))
    return file


async def dead_call(
    caller: Caller, tool: str = "increment_counter", execution_class: str = "repeatable", **arguments: Any
) -> ToolCallRequested:
    """A call that is a dead letter."""
    request = await caller.call(tool, execution_class=execution_class, **arguments)
    delivery = await caller.deliver("lost-worker")
    await caller.worker.complete(delivery, await caller.run(delivery), EXHAUSTED, dead_reason=REASON)
    return request


async def begun_three_times(caller: Caller, token: str) -> ToolCallRequested:
    """A repeatable call whose third worker is gone as well: the next one gives it up."""
    request = await caller.call("increment_counter", execution_class="repeatable", token=token)
    delivery = await caller.deliver("worker-1")
    await caller.run(delivery)
    for number in (2, 3):
        delivery = await caller.claim(delivery, f"worker-{number}")
        await caller.run(delivery)
    await caller.age(delivery)
    return request


async def letter_ids(caller: Caller) -> list[str]:
    return [entry.decode() for entry, _ in await caller.redis.xrange(caller.keys.dead)]


@promise("operators list, show, requeue and discard dead letters")
async def test_an_exhausted_call_of_a_real_worker_is_shown_requeued_and_runs_once(
    caller: Caller, operator: Operator, demo: Demo, servers_file: Path
) -> None:
    token = "exhausted-and-requeued"
    request = await begun_three_times(caller, token)
    async with working(operator.url, servers_file):
        assert (await caller.outcome(request)).state is CallState.DEAD
        (row,) = (await operator.dead("list", "--json")).rows
        assert (row["reason"], row["starts"], row["tool"]) == (REASON, 3, "increment_counter")
        assert [each["what"] for each in row["history"]] == ["started", "lost"] * 3
        assert row["worker"] not in ("worker-1", "worker-2", "worker-3")
        assert token not in demo.effects()

        answer = await operator.dead("requeue", row["id"], "--yes", "--wait", "--json")

    (done,) = answer.rows
    assert (answer.code, done["result"], done["outcome"]["state"]) == (DONE, "requeued", "succeeded")
    assert done["newCorrelationId"] != request.correlation_id
    assert demo.effects().count(token) == 1
    assert await letter_ids(caller) == []
    assert (await caller.outcome(request)).state is CallState.DEAD


async def test_an_entry_that_a_real_worker_cannot_read_is_shown_safely_and_can_only_be_discarded(
    caller: Caller, operator: Operator, servers_file: Path
) -> None:
    await caller.redis.xadd(caller.keys.requests, {"event": b'\xff\x1b[31m{"'})
    async with working(operator.url, servers_file):
        (letter,) = await wait_until(lambda: letter_ids(caller), 20)

    shown = await operator.dead("show", letter)
    assert shown.code == DONE
    assert "\\xff\\x1b[31m" in shown.out
    assert "\x1b" not in shown.out
    refused = await operator.dead("requeue", letter, "--yes")
    assert refused.code == NOT_DONE
    assert "it cannot be decoded" in refused.out
    assert "then discard it" in refused.out
    assert await letter_ids(caller) == [letter]
    assert (await operator.dead("discard", letter, "--yes")).code == DONE
    assert await letter_ids(caller) == []


@promise("operators list, show, requeue and discard dead letters")
async def test_a_call_that_may_have_run_is_refused_until_one_says_that_one_knows(
    caller: Caller, operator: Operator
) -> None:
    request = await dead_call(caller, execution_class="once", token="twice")
    refused = await operator.dead("requeue", request.correlation_id, "--yes", "--json")
    assert (refused.code, refused.rows[0]["result"]) == (NOT_DONE, "refused")
    assert "--may-have-run" in refused.rows[0]["detail"]
    assert await caller.backlog() == 0

    assert (await operator.dead("requeue", request.correlation_id, "--yes", "--may-have-run")).code == DONE
    assert await caller.backlog() == 1


@promise("operators list, show, requeue and discard dead letters")
@pytest.mark.parametrize("command", ["requeue", "discard"])
@pytest.mark.parametrize(("typed", "done"), [("y\n", True), ("YES\n", True), ("n\n", False), ("\n", False)])
async def test_at_a_terminal_it_asks_and_only_yes_is_yes(
    caller: Caller, operator: Operator, command: str, typed: str, done: bool
) -> None:
    await dead_call(caller, execution_class="once")
    words = [command, "--all", *(["--may-have-run"] if command == "requeue" else [])]
    answer = await operator.dead(*words, stdin=Terminal(typed))

    assert "[y/N]" in answer.err
    assert REASON in answer.err
    assert ("would take effect twice" in answer.err) == (command == "requeue")
    assert answer.code == (DONE if done else NOT_DONE)
    assert bool(await letter_ids(caller)) is not done
    assert await caller.backlog() == (command == "requeue" and done)


@pytest.mark.parametrize("command", ["requeue", "discard"])
async def test_without_yes_and_without_a_terminal_and_in_a_dry_run_nothing_is_done(
    caller: Caller, operator: Operator, command: str
) -> None:
    await dead_call(caller)
    answer = await operator.dead(command, "--all")
    assert (answer.code, answer.out, "--yes" in answer.err) == (WRONG, "", True)
    answer = await operator.dead(command, "--all", "--dry-run", "--yes", "--json")
    assert (answer.code, [row["result"] for row in answer.rows]) == (DONE, [f"would {command}"])

    assert len(await letter_ids(caller)) == 1
    assert await caller.backlog() == 0


async def test_letters_are_filtered_newest_first(caller: Caller, operator: Operator) -> None:
    calls = [await dead_call(caller, tool, text=tool) for tool in ("echo", "increment_counter", "echo")]
    await caller.command("XADD", caller.keys.dead, "*", "reason", "not JSON", "event", "{")

    async def listed(*filters: str) -> list[str]:
        return [row["correlationId"] for row in (await operator.dead("list", "--json", *filters)).rows]

    newest_first = [call.correlation_id for call in reversed(calls)]
    assert await listed() == ["", *newest_first]
    assert await listed("--tool", "echo") == await listed("--tool", "demo__echo") == [newest_first[0], newest_first[2]]
    assert await listed("--server", "demo", "--limit", "2") == newest_first[:2]
    assert await listed("--reason", "WORKER WAS LOST") == newest_first
    assert await listed("--subject", "somebody") == newest_first
    assert await listed("--subject", "unknown") == []
    assert await listed("--since", "1h") == ["", *newest_first]
    assert await listed("--since", "2999-01-01") == []
    assert (await operator.dead("list", "--server", "none")).code == NOT_DONE


async def test_scripts_are_informed_too_that_there_are_more_letters(caller: Caller, operator: Operator) -> None:
    for _ in range(51):
        await caller.command("XADD", caller.keys.dead, "*", "reason", "x", "event", "{")
    answer = await operator.dead("list", "--json", "--since", "9" * 400 + "d")
    assert (len(answer.rows), "--limit shows more" in answer.err) == (50, True)


async def test_the_new_ids_of_calls_are_printed_though_their_end_cannot_be_awaited(
    caller: Caller, operator: Operator
) -> None:
    for _ in range(2):
        await dead_call(caller)

    async def silence() -> None:
        await wait_until_is(caller.backlog, 2)
        await caller.command("CLIENT", "PAUSE", "4000")

    silenced = asyncio.create_task(silence())
    answer = await operator.dead("requeue", "--all", "--yes", "--wait", "--json")
    await silenced

    assert answer.code == UNREACHABLE
    printed = {row["newCorrelationId"] for row in answer.rows}
    requests = [decode_request(fields[b"event"]) for _, fields in await caller.redis.xrange(caller.keys.requests)]
    assert printed == {request.correlation_id for request in requests}


async def test_the_table_fits_100_columns_and_all_that_is_known_of_a_letter_is_shown(
    caller: Caller, operator: Operator
) -> None:
    request = await dead_call(caller, text="two\nlines")
    lines = (await operator.dead("list")).out.splitlines()
    assert [line.split()[0] for line in lines] == ["ID", *await letter_ids(caller)]
    assert max(map(len, lines)) <= 100
    assert "demo/increment_counter" in lines[1]

    shown = (await operator.dead("show", request.correlation_id)).out
    for words in (REASON, "demo/increment_counter", "somebody", "started by lost-worker", '"text": "two\\nlines"'):
        assert words in shown


async def test_a_missing_letter_is_reported_and_the_empty_name_of_a_script_is_none(
    caller: Caller, operator: Operator
) -> None:
    assert (await operator.dead("discard", "--all", "--yes")).code == NOT_DONE
    await caller.command("XADD", caller.keys.dead, "*", "reason", "unreadable", "correlationId", "", "event", "{")
    for name in ("1-1", ""):
        assert (await operator.dead("show", name)).code == NOT_DONE
        assert (await operator.dead("requeue", name, "--yes")).code == NOT_DONE
    answer = await operator.dead("discard", "1-1", "", "\x1b[31m", f"{2**64}-0", "9" * 5000 + "-0", "--yes")
    assert (answer.code, answer.out.count("not found")) == (NOT_DONE, 5)
    assert "\x1b" not in answer.out
    assert len(await letter_ids(caller)) == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "the following arguments are required"),
        (("requeue",), "give the ids of letters, or --all"),
        (("discard", "1-1", "--all"), "give the ids of letters, or --all, but not both"),
        (("discard", "1-1", "--tool", "echo"), "filters go with --all"),
        (("discard", "--a", "--y"), "unrecognized arguments: --a --y"),
        (("list", "--since", "yesterday"), "'yesterday' is not a time"),
        (("list", "--limit", "0"), "'0' is not a number above 0"),
        (("requeue", "--all", "--timeout", "soon"), "'soon' is not a duration"),
        (("requeue", "--all", "--timeout", "31d"), "'31d' is too long: at most 30d"),
        (("requeue", "--all", "--timeout", "9" * 400), "is too long: at most 30d"),
    ],
)
async def test_wrong_arguments_are_reported(operator: Operator, words: tuple[str, ...], said: str) -> None:
    answer = await operator.dead(*words)
    assert (answer.code, said in answer.err) == (WRONG, True)


async def test_a_redis_that_is_silent_is_given_up_within_5_seconds(operator: Operator) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        began = time.monotonic()
        answer = await operator.dead("list", REDIS_URL=f"redis://127.0.0.1:{silent.getsockname()[1]}/0")

    assert answer.code == UNREACHABLE
    assert time.monotonic() - began < 5


@exhaustive("a process that starts as a user starts it, to see its output")
async def test_who_reads_only_the_first_line_leaves_no_traceback(caller: Caller, operator: Operator) -> None:
    for _ in range(20):
        await caller.command("XADD", caller.keys.dead, "*", "reason", "x" * 5000, "event", "{")
    done = await anyio.run_process(
        f"{BIN / 'plugins-mcp'} dead list --json --limit 20 | head -1",
        cwd=operator.folder,
        env=environment(operator.url),
    )
    assert json.loads(done.stdout)["reason"] == "x" * 5000
    assert b"Traceback" not in done.stderr
