"""Questions of servers of earlier protocols: the worker keeps the call open, and nothing else of it."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.local.ports import free_port
from plugins_contract.errors import ErrorCode
from plugins_contract.held import HeldState, readable
from plugins_contract.messages import ROUND_VERSION, ExecutionClass, ToolCallRequested
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.questions import InputRequired, NextRound, QuestionKind, call_of_round, round_id
from plugins_mcp.placement import Elsewhere, Placement
from tests.marks import promise
from tests.support.forked import forked, forked_server
from tests.support.handling import Bench
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling, working

ACCEPT: dict[str, Any] = {"action": "accept", "content": {"day": "2026-11-26", "seats": 3}}


class Earlier(Caller):
    """Calls tools of the server that asks in the middle of them."""

    async def begin(self, tool: str, *, asks: bool = True, session: str = "one", **arguments: Any) -> ToolCallRequested:
        request = msgspec.structs.replace(
            await self.request("once"),
            server="earlier",
            session_id=session,
            tool=tool,
            tool_name=f"earlier__{tool}",
            arguments=arguments,
            may_ask=asks or msgspec.UNSET,
            approved=None,
        )
        await self.engine.enqueue(request)
        return request

    async def outcome(self, request: ToolCallRequested, timeout: float = 60.0) -> ToolOutcome:
        return await super().outcome(request, timeout)

    async def asked(self, request: ToolCallRequested) -> InputRequired:
        outcome = await self.outcome(request)
        assert outcome.state is CallState.INPUT_REQUIRED, outcome
        assert outcome.asked is not None
        return outcome.asked

    async def answer(
        self, request: ToolCallRequested, asked: InputRequired, answer: dict[str, Any] | None = ACCEPT, holder: str = ""
    ) -> ToolCallRequested:
        """Send the next round."""
        number = 1 + (request.next_round.number if request.next_round else 1)
        name = round_id(call_of_round(request.correlation_id), number)
        responses = {each.key: answer for each in asked.questions} if answer else {}
        following = msgspec.structs.replace(
            request,
            correlation_id=name,
            response_channel=self.keys.response(name),
            event_version=ROUND_VERSION,
            execution_class=ExecutionClass.ONCE,
            next_round=NextRound(number, responses, asked.state, holder or asked.holder),
        )
        await self.engine.enqueue(following)
        return following

    async def held(self, request: ToolCallRequested) -> HeldState | None:
        rows = dict(readable(await self.redis.hgetall(self.keys.held)))
        return rows[request.correlation_id].state if request.correlation_id in rows else None

    async def is_held(self, request: ToolCallRequested, state: HeldState | None) -> None:
        async def is_so() -> bool:
            return await self.held(request) is state

        await wait_until(is_so, 60, what=f"held as {state}")


@asynccontextmanager
async def served(folder: Path, transport: str = "stdio", **options: Any) -> AsyncGenerator[Path]:
    """A servers file with the server, which runs."""
    module, environment = "tests.integration.servers.asking_earlier", {"TRACE": str(folder / "trace")}
    entry = forked_server(module, env=environment)
    process = None
    if transport != "stdio":
        port = free_port()
        process = Process(forked(module, transport, str(port)), env=environment)
        path = "sse" if transport == "sse" else "mcp"
        entry = {"url": f"http://127.0.0.1:{port}/{path}"} | ({"type": "sse"} if transport == "sse" else {})
    path = folder / "mcp.json"
    path.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "earlier": entry | {"callstream": {"protocol": "legacy", "connectTimeoutMs": 120_000} | options}
                }
            }
        )
    )
    try:
        yield path
    finally:
        if process is not None:
            process.close()


@pytest.fixture
async def earlier(redis_url: str) -> AsyncGenerator[Earlier]:
    async with calling(redis_url) as plain:
        yield Earlier(plain.redis, plain.thread)


@pytest.fixture
async def one(earlier: Earlier, redis_url: str, tmp_path: Path) -> AsyncGenerator[Path]:
    """One worker, whose server has one slot. The file in which the server notes what it does."""
    async with served(tmp_path, concurrency=1) as config, at_work(earlier, redis_url, config):
        yield tmp_path / "trace"


@asynccontextmanager
async def at_work(earlier: Earlier, url: str, config: Path) -> AsyncGenerator[None]:
    """A worker that is connected to the server."""
    async with working(url, config):
        await earlier.redis.delete(earlier.keys.catalog_of("earlier"))
        await wait_until(lambda: earlier.redis.hexists(earlier.keys.catalog_of("earlier"), "version"), 90, what="it")
        yield


def text(outcome: ToolOutcome) -> str:
    assert outcome.state is CallState.SUCCEEDED, outcome
    return "".join(block.text for block in outcome.content if isinstance(block, TextBlock))


def code(outcome: ToolOutcome) -> ErrorCode | None:
    return outcome.error.code if outcome.error else None


def lines_of(trace: Path) -> list[str]:
    return trace.read_text().splitlines() if trace.exists() else []


async def traced(trace: Path, last: str) -> list[str]:
    async def lines() -> list[str]:
        found = lines_of(trace)
        return found if found and found[-1] == last else []

    return await wait_until(lines, 60, what=f"{last} in the trace")


@promise("a server of an earlier protocol asks in the middle of a call, which has neither slot nor lease meanwhile")
@pytest.mark.parametrize("transport", ["stdio", "streamable-http", "sse"])
async def test_a_call_is_open_without_a_slot_while_a_person_is_asked(
    earlier: Earlier, redis_url: str, tmp_path: Path, transport: str
) -> None:
    async with served(tmp_path, transport, concurrency=1) as config, at_work(earlier, redis_url, config):
        request = await earlier.begin("book", city="Bonn")
        asked = await earlier.asked(request)
        [question] = asked.questions
        assert (question.kind, question.message) == (QuestionKind.FORM, "When to Bonn?")
        assert await earlier.nothing_pending(), "the round has ended"
        await earlier.is_held(request, HeldState.OPEN)
        assert text(await earlier.outcome(await earlier.begin("echo", text="free"))) == "free", "the only slot"

        answered = await earlier.answer(request, asked)
        assert text(await earlier.outcome(answered)) == "accept {'day': '2026-11-26', 'seats': 3} Bonn"
        await earlier.is_held(request, None)
    assert lines_of(tmp_path / "trace") == ["book Bonn", "accept"]


async def test_what_people_say_reaches_the_server(earlier: Earlier, one: Path) -> None:
    for action in ("decline", "cancel"):
        request = await earlier.begin("book", city="Bonn")
        answered = await earlier.answer(request, await earlier.asked(request), {"action": action})
        assert text(await earlier.outcome(answered)) == f"{action} None Bonn"

    request = await earlier.begin("open_page")
    asked = await earlier.asked(request)
    assert [(each.kind, each.url) for each in asked.questions] == [(QuestionKind.URL, "https://example.com/visit")]
    assert text(await earlier.outcome(await earlier.answer(request, asked, {"action": "accept"}))) == "accept"


@promise("a server's question that is unfit, nested or asks for a secret in a form is put to nobody")
async def test_what_nobody_is_asked_ends_the_call(earlier: Earlier, one: Path) -> None:
    outcome = await earlier.outcome(await earlier.begin("secret"))
    assert code(outcome) is ErrorCode.INPUT_REFUSED
    assert "a secret in a form ('password')" in str(outcome.error)
    await traced(one, "cancel")
    for tool, arguments in (("book", {"city": "Bonn"}), ("guarded", {})):
        outcome = await earlier.outcome(await earlier.begin(tool, asks=False, **arguments))
        assert code(outcome) is ErrorCode.INPUT_REFUSED
        assert "whoever requested this call cannot be asked" in str(outcome.error)

    request = await earlier.begin("many", questions=11)
    for number in range(10):
        asked = await earlier.asked(request)
        assert asked.questions[0].message == f"Question {number}"
        request = await earlier.answer(request, asked)
    assert code(await earlier.outcome(request)) is ErrorCode.INPUT_REFUSED
    assert (await traced(one, "cancel"))[-2:] == ["accept", "cancel"]


@promise("a question that names no call is declined while several calls are in flight in its session")
async def test_two_calls_in_flight_over_stdio(earlier: Earlier, redis_url: str, tmp_path: Path) -> None:
    async with served(tmp_path, concurrency=2) as config, at_work(earlier, redis_url, config):
        first = await earlier.begin("book", city="Bonn")
        asked = await earlier.asked(first)
        assert text(await earlier.outcome(await earlier.begin("book", city="Rome"))) == "decline None Rome"
        assert text(await earlier.outcome(await earlier.answer(first, asked))).endswith("Bonn")


async def test_two_calls_in_flight_by_http(earlier: Earlier, redis_url: str, tmp_path: Path) -> None:
    """There a question arrives in the response to its call."""
    async with served(tmp_path, "streamable-http") as config, at_work(earlier, redis_url, config):
        calls = {city: await earlier.begin("book", city=city) for city in ("Bonn", "Rome")}
        asked = {city: await earlier.asked(request) for city, request in calls.items()}
        for city, request in calls.items():
            assert asked[city].questions[0].message == f"When to {city}?"
            assert text(await earlier.outcome(await earlier.answer(request, asked[city]))).endswith(city)


@promise("a question in the middle of a call is over when server, session or caller do not wait any more")
async def test_nobody_waits_for_the_answer_any_more(earlier: Earlier, one: Path) -> None:
    request = await earlier.begin("hasty")
    asked = await earlier.asked(request)
    await earlier.is_held(request, HeldState.OVER)
    assert text(await earlier.outcome(await earlier.answer(request, asked, None))) == "nobody was quick enough"

    request = await earlier.begin("book", city="Bonn")
    await earlier.asked(request)
    await earlier.is_held(request, HeldState.OPEN)
    await earlier.redis.delete(earlier.keys.held)
    await earlier.is_held(request, HeldState.OPEN)  # written again
    message = {"kind": "cancel", "correlationId": request.correlation_id}
    await earlier.redis.publish(earlier.keys.control, msgspec.json.encode(message))
    assert (await traced(one, "cancel"))[-2:] == ["book Bonn", "cancel"]
    await earlier.is_held(request, None)

    request = await earlier.begin("book", city="Bonn")
    asked = await earlier.asked(request)
    await earlier.begin("die")
    await earlier.is_held(request, HeldState.LOST)
    late = await earlier.outcome(await earlier.answer(request, asked))
    assert (late.state, code(late)) == (CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)


async def test_a_worker_that_stops_says_that_its_calls_are_lost(
    earlier: Earlier, redis_url: str, tmp_path: Path
) -> None:
    async with served(tmp_path) as config:
        async with at_work(earlier, redis_url, config):
            request = await earlier.begin("book", city="Bonn")
            asked = await earlier.asked(request)
        assert await earlier.held(request) is HeldState.LOST
        assert await traced(tmp_path / "trace", "cancel") == ["book Bonn", "cancel"]
        async with at_work(earlier, redis_url, config):
            late = await earlier.outcome(await earlier.answer(request, asked))
    assert (late.state, code(late)) == (CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN)


@promise("an answer reaches the worker that keeps the call open, whichever reads it")
async def test_an_answer_goes_to_the_holder_among_several_workers(
    earlier: Earlier, redis_url: str, tmp_path: Path
) -> None:
    async with (
        served(tmp_path, session="conversation") as config,
        at_work(earlier, redis_url, config),
        at_work(earlier, redis_url, config),
    ):
        cities = ("Bonn", "Rome", "Oslo", "Graz")
        calls = [await earlier.begin("book", session=city, city=city) for city in cities]
        asked = [await earlier.asked(request) for request in calls]
        for request, each, city in zip(calls, asked, cities, strict=True):
            assert text(await earlier.outcome(await earlier.answer(request, each))).endswith(city)


@promise("an answer reaches the worker that keeps the call open, whichever reads it")
async def test_any_worker_leaves_the_answer_to_the_holder(earlier: Earlier) -> None:
    bench = Bench(alive={"b"})
    request = await earlier.request("once")

    async def elsewhere(own: str, holder: str) -> Elsewhere | None:
        placement = Placement(bench, bench, bench, own)
        held = msgspec.structs.replace(request, next_round=NextRound(2, holder=holder))
        assert not placement.any_worker_runs(held)
        return await placement.elsewhere(held)

    assert await elsewhere("a", "b") == Elsewhere("b")
    assert await elsewhere("b", "b") is None
    assert await elsewhere("a", "gone") is None, "any worker can say that the call is lost"


@promise("a call that its server takes only after an address was visited is sent again when it was")
async def test_an_address_is_to_be_visited_first(earlier: Earlier, one: Path) -> None:
    request = await earlier.begin("guarded")
    asked = await earlier.asked(request)
    assert [(each.kind, each.url) for each in asked.questions] == [(QuestionKind.URL, "https://example.com/visit")]
    assert asked.holder == ""
    declined = await earlier.answer(request, asked, {"action": "decline"})
    assert code(await earlier.outcome(declined)) is ErrorCode.INPUT_REFUSED
    assert lines_of(one) == ["guarded"], "not sent again"

    request = await earlier.begin("guarded")
    again = await earlier.answer(request, await earlier.asked(request), {"action": "accept"})
    asked = await earlier.asked(again)
    await earlier.outcome(await earlier.begin("visit", say=True))
    await earlier.is_held(again, HeldState.OVER)
    assert text(await earlier.outcome(await earlier.answer(again, asked, {"action": "accept"}))) == "guarded result"
    assert lines_of(one) == ["guarded"] * 4


@promise("servers of earlier protocols are told that questions are answered only where they are")
async def test_what_a_session_declares(earlier: Earlier, redis_url: str, tmp_path: Path) -> None:
    async with served(tmp_path, session="conversation") as config, at_work(earlier, redis_url, config):
        assert text(await earlier.outcome(await earlier.begin("declared", asks=False))) == "None"
        request = await earlier.begin("declared", session="another")
        assert "form" in text(await earlier.outcome(request))
