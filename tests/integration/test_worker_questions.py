"""Questions of a real server: a round of the call ends with them, and any worker sends the next one."""

import json
from pathlib import Path

import msgspec

from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ROUND_VERSION, ExecutionClass, ToolCallRequested, encode_request
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.questions import InputRequired, NextRound, QuestionKind, round_id
from tests.marks import promise
from tests.support.forked import forked_server
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling, working

KEY = "k" * 32
WHEN = {"when": {"action": "accept", "content": {"day": "2026-11-26", "seats": 3}}}


class Asking(Caller):
    """Calls tools of the server that asks."""

    async def round(
        self, tool: str, before: ToolCallRequested | None = None, brings: NextRound | None = None, *, asks: bool = True
    ) -> ToolCallRequested:
        request = before or msgspec.structs.replace(
            await self.request("repeatable"),
            server="asking",
            tool=tool,
            tool_name=f"asking__{tool}",
            arguments={"city": "Bonn"} if tool == "book" else {},
            may_ask=asks or msgspec.UNSET,
            approved=None,
        )
        if brings is not None:
            number = round_id(request.correlation_id.partition(":")[0], brings.number)
            request = msgspec.structs.replace(
                request,
                correlation_id=number,
                response_channel=self.keys.response(number),
                event_version=ROUND_VERSION,
                execution_class=ExecutionClass.ONCE,
                next_round=brings,
            )
        await self.engine.enqueue(request)
        return request

    async def asked(self, request: ToolCallRequested) -> InputRequired:
        outcome = await self.outcome(request)
        assert outcome.state is CallState.INPUT_REQUIRED, outcome
        assert outcome.asked is not None
        return outcome.asked


def servers(folder: Path, key: str = KEY) -> Path:
    environment = {"KEY": key, "TRACE": str(folder / "trace")}
    entry = forked_server("tests.integration.servers.asking", env=environment, callstream={"trust": False})
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"asking": entry}}))
    return path


def ran(folder: Path) -> list[str]:
    trace = folder / "trace"
    return trace.read_text().splitlines() if trace.exists() else []


def code(outcome: ToolOutcome) -> ErrorCode | None:
    return outcome.error.code if outcome.error else None


def text(outcome: ToolOutcome) -> str:
    return "".join(block.text for block in outcome.content if isinstance(block, TextBlock))


@promise("a server's question ends a round of its call, and any worker sends the next one, once")
async def test_another_worker_sends_the_answer_with_the_state(redis_url: str, tmp_path: Path) -> None:
    async with calling(redis_url) as plain:
        caller = Asking(plain.redis, plain.thread)
        async with working(redis_url, servers(tmp_path)):
            first = await caller.round("book")
            [question] = (asked := await caller.asked(first)).questions
            assert (question.key, question.kind, question.message) == ("when", QuestionKind.FORM, "When to Bonn?")
            assert await caller.nothing_pending(), "the round has ended"
            assert await caller.backlog_is_empty()
            assert await caller.redis.hget(caller.keys.call(first.correlation_id), "state") == b"input_required"
        async with working(redis_url, servers(tmp_path)):
            second = await caller.round("book", first, NextRound(2, WHEN, asked.state))
            outcome = await caller.outcome(second)

        assert outcome.state is CallState.SUCCEEDED
        assert text(outcome) == "accept Bonn {'day': '2026-11-26', 'seats': 3} canary-state to Bonn"
        assert ran(tmp_path) == ["book None", "book canary-state to Bonn accept"]


@promise("a server's state that has expired, or that a restarted server cannot read, ends its call as INPUT_EXPIRED")
async def test_a_server_with_another_key_is_not_asked_from_the_beginning(redis_url: str, tmp_path: Path) -> None:
    async with calling(redis_url) as plain:
        caller = Asking(plain.redis, plain.thread)
        async with working(redis_url, servers(tmp_path)):
            asked = await caller.asked(first := await caller.round("book"))
        async with working(redis_url, servers(tmp_path, key="another" * 5)):
            outcome = await caller.outcome(await caller.round("book", first, NextRound(2, WHEN, asked.state)))

    assert outcome.state is CallState.FAILED
    assert code(outcome) is ErrorCode.INPUT_EXPIRED
    assert ran(tmp_path) == ["book None"], "never round 1 again"


@promise("nobody is asked for a request whose producer cannot ask")
async def test_a_plain_producer_is_not_asked_whatever_it_says(redis_url: str, tmp_path: Path) -> None:
    async with calling(redis_url) as plain, working(redis_url, servers(tmp_path)):
        caller = Asking(plain.redis, plain.thread)
        request = await caller.request("once")
        written = msgspec.json.decode(encode_request(request)) | {
            "toolName": "asking__book",
            "arguments": {"city": "Bonn"},
            "mayAsk": True,
        }
        del written["server"], written["tool"]

        async def listed() -> bool:
            return b"asking__book" in (await caller.redis.hget(caller.keys.catalog_of("asking"), "catalog") or b"")

        await wait_until(listed, 60, what="the tools")
        await caller.redis.xadd(caller.keys.requests, {"event": msgspec.json.encode(written)})
        outcome = await caller.outcome(request)
    assert (outcome.state, code(outcome)) == (CallState.FAILED, ErrorCode.INPUT_REFUSED)
    assert "whoever requested this call cannot be asked" in str(outcome.error)


@promise("a server's question that is unfit, nested or asks for a secret in a form is put to nobody")
async def test_what_nobody_is_asked_says_what_the_server_wanted(redis_url: str, tmp_path: Path) -> None:
    wanted = {
        "nested": "field 'field'",
        "javascript": "'javascript:alert(1)'",
        "private": "169.254.169.254",
        "secret": "a secret in a form ('API key')",
        "too_many": "11 questions",
        "sampling": "sampling/createMessage",
    }
    async with calling(redis_url) as plain, working(redis_url, servers(tmp_path)):
        caller = Asking(plain.redis, plain.thread)
        said = {tool: await caller.outcome(await caller.round(tool)) for tool in wanted}
        unasked = await caller.outcome(await caller.round("book", asks=False))
        last = NextRound(11, {"more": {"action": "accept", "content": {}}}, None)
        endless = await caller.outcome(await caller.round("endless", await caller.round("endless"), last))

    for tool, words in wanted.items():
        assert code(said[tool]) is ErrorCode.INPUT_REFUSED
        assert words in str(said[tool].error)
    assert code(unasked) is ErrorCode.INPUT_REFUSED, "a producer that cannot ask"
    assert "after 10 rounds" in str(endless.error)
