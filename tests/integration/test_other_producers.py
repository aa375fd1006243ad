"""A producer that speaks Redis and nothing more, beside a whole worker; `docs/wire.md` is held to what it sees."""

import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx2
import msgspec
import pytest
from redis.asyncio import Redis

from callstream_runtime.clock import RedisClock
from deploy.local.ports import free_port
from plugins_contract.catalog import ToolEntry
from plugins_contract.keys import Keys
from plugins_contract.ledger import encode_reply, replies
from plugins_contract.messages import approve, encode_request
from plugins_contract.outcomes import CallFinished
from plugins_mcp.adoption import RequestAdopter
from plugins_mcp.ports import ToolLookup
from tests.integration.demo import Demo
from tests.marks import promise
from tests.support.ledger import DONE
from tests.support.processes import ROOT
from tests.support.waiting import wait_until
from tests.support.working import Caller, working

KEYS = Keys()
Fields = dict[str, str]


def call_id(number: int) -> str:
    """A correlation id that stays the same in every run."""
    return f"01a20000-0000-7000-8000-{number:012}"


def minimal(number: int, tool: str = "demo__add", **arguments: Any) -> dict[str, Any]:
    """The smallest request that there is."""
    return {
        "eventType": "PluginToolCallRequested",
        "correlationId": call_id(number),
        "sessionId": "session-of-mine",
        "turn": 1,
        "toolCallId": "call_1",
        "toolName": tool,
        "arguments": arguments or {"a": 2, "b": 3},
        "responseChannel": f"rpc.plugins.responses:{call_id(number)}",
    }


@dataclass
class Producer:
    """Puts requests on the stream and reads channels."""

    redis: Any
    url: str
    config: Path
    stack: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def work(self, **settings: Any) -> None:
        """Let a worker run for as long as the test."""
        await self.stack.enter_async_context(working(self.url, self.config, **settings))

    async def submit(self, request: dict[str, Any] | str | None, **fields: str) -> None:
        if request is not None:
            fields["event"] = request if isinstance(request, str) else json.dumps(request)
        await self.redis.xadd(KEYS.requests, fields)

    async def entries(self, channel: str) -> list[Fields]:
        rows = await self.redis.xrange(channel)
        return [{name.decode(): value.decode() for name, value in fields.items()} for _, fields in rows]

    async def answer(self, channel: str) -> list[Fields]:
        """All entries of a channel, once the last of them is terminal."""

        async def finished() -> list[Fields]:
            entries = await self.entries(channel)
            return entries if entries and entries[-1]["kind"] == "finished" else []

        return await wait_until(finished, 20, what=f"an answer on {channel}")

    async def outcome(self, request: dict[str, Any]) -> dict[str, Any]:
        """The terminal answer, of which there is one."""
        *before, last = await self.answer(request["responseChannel"])
        assert "finished" not in [entry["kind"] for entry in before]
        return json.loads(last["reply"])["outcome"]

    async def error(self, request: dict[str, Any]) -> tuple[str, str, str]:
        """State, code and message of a call that did not succeed."""
        outcome = await self.outcome(request)
        return outcome["state"], outcome["error"]["code"], outcome["error"]["message"]


@pytest.fixture
async def producer(redis: Redis, redis_url: str, demo: Demo, tmp_path: Path) -> AsyncGenerator[Producer]:
    config = tmp_path / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"demo": {"url": demo.url, "callstream": {"trust": True}}}}))
    producer = Producer(redis, redis_url, config)
    async with producer.stack:
        yield producer


@promise("a request of another producer is run, or answered with what is wrong, and never with an untrue LOST")
async def test_a_minimal_request_from_before_the_worker_is_run_and_answered_in_its_channel(producer: Producer) -> None:
    request = minimal(1)
    await producer.submit(request)
    await producer.work()

    entries = await producer.answer(request["responseChannel"])
    assert [(entry["correlationId"], entry["toolCallId"], entry["kind"]) for entry in entries] == [
        (call_id(1), "call_1", "started"),
        (call_id(1), "call_1", "finished"),
    ]
    outcome = await producer.outcome(request)
    assert (outcome["state"], json.loads(outcome["content"][0]["text"])) == ("succeeded", 5)
    assert await producer.redis.xlen(KEYS.requests) == 0


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in minimal(1).items() if key != name}


REFUSED = {
    "no toolName": (without("toolName"), "INVALID_ARGUMENTS", "toolName"),
    "no session": (without("sessionId"), "INVALID_ARGUMENTS", "sessionId"),
    "no responseChannel": (without("responseChannel"), "INVALID_ARGUMENTS", "responseChannel"),
    "no eventType": (without("eventType"), "INVALID_ARGUMENTS", "eventType"),
    "turn is a text": (minimal(1) | {"turn": "1"}, "INVALID_ARGUMENTS", "$.turn"),
    "arguments are a list": (minimal(1) | {"arguments": [1]}, "INVALID_ARGUMENTS", "$.arguments"),
    "another event": (minimal(1) | {"eventType": "Else"}, "INVALID_ARGUMENTS", "eventType"),
    "a version to come": (minimal(1) | {"eventVersion": 2}, "INVALID_ARGUMENTS", "eventVersion"),
    "a channel elsewhere": (minimal(1) | {"responseChannel": "events.plugins"}, "INVALID_ARGUMENTS", "responseChannel"),
    "a mailbox elsewhere": (minimal(1) | {"mailbox": "dialog.turns:x"}, "INVALID_ARGUMENTS", "mailbox"),
    "a deadline in a century": (minimal(1) | {"deadline": 2**52}, "INVALID_ARGUMENTS", "deadline"),
    "a server without its tool": (minimal(1) | {"server": "demo"}, "INVALID_ARGUMENTS", "server and tool"),
    "an unknown tool": (minimal(1, "demo__nothing"), "TOOL_NOT_FOUND", "demo__nothing"),
}


@promise("a request of another producer is run, or answered with what is wrong, and never with an untrue LOST")
async def test_what_is_wrong_is_said_in_the_channel_with_the_field_and_the_fix(producer: Producer) -> None:
    await producer.work()
    for number, (request, code, words) in enumerate(REFUSED.values(), 1):
        request["correlationId"] = call_id(number)
        channel = f"rpc.plugins.responses:{call_id(number)}"
        if str(request.get("responseChannel", "")).startswith("rpc."):
            request["responseChannel"] = channel
        await producer.submit(request)
        state, reason, message = await producer.error(request | {"responseChannel": channel})
        assert (state, reason) == ("dead", code), message
        assert words in message
        assert "correct it and send it under a new correlationId" in message
    assert await producer.redis.type("events.plugins") == b"stream"
    assert await producer.redis.xlen(KEYS.requests) == 0
    assert await producer.redis.xlen(KEYS.dead) == len(REFUSED)


@promise("the name of a tool at its server is enough where one server has it; else the error lists them")
async def test_the_bare_name_of_a_tool_is_enough_where_one_server_has_it_and_the_sender_may_use_it(
    producer: Producer, demo: Demo, tmp_path: Path
) -> None:
    without_echo = {"trust": True, "tools": {"echo": {"disabled": True}}}
    servers = {
        "demo": {"url": demo.url, "callstream": {"trust": True}},
        "other": {"url": demo.url, "callstream": without_echo},
    }
    producer.config.write_text(json.dumps({"mcpServers": servers}))
    rights = tmp_path / "rights.toml"
    rights.write_text(
        '[[allow]]\nsubjects = ["ann"]\ntools = ["*/*"]\n[[allow]]\nsubjects = ["bob"]\ntools = ["other/add"]\n'
    )
    await producer.work(rights_file=rights)
    requests = [
        minimal(1, "echo", text="hi") | {"subject": "ann"},
        minimal(2, "add") | {"subject": "ann"},
        minimal(3, "add") | {"subject": "bob"},
        minimal(4, "echo", text="hi") | {"subject": "bob"},
        minimal(5, "add") | {"subject": "eve"},
    ]
    for request in requests:
        await producer.submit(request)

    assert (await producer.outcome(requests[0]))["state"] == "succeeded"
    state, code, message = await producer.error(requests[1])
    assert (state, code) == ("dead", "TOOL_NOT_FOUND")
    assert "several MCP servers have a tool of that name: send demo__add or other__add" in message
    assert (await producer.outcome(requests[2]))["state"] == "succeeded"
    assert await producer.redis.hget(KEYS.call(call_id(3)), "server") == b"other"
    for request in requests[3:]:
        state, code, message = await producer.error(request)
        assert (state, code) == ("failed", "PERMISSION_DENIED"), message


async def test_an_entry_that_does_not_name_its_call_or_channel_properly_is_answered_where_it_can_be(
    producer: Producer,
) -> None:
    await producer.work()
    for number, event in enumerate(("{", None, "[1]", "\u0000"), 1):
        request = minimal(number)
        fields = {name: request[name] for name in ("correlationId", "toolCallId", "responseChannel")}
        await producer.submit(event, **fields)
        assert (await producer.error(request))[:2] == ("dead", "INVALID_ARGUMENTS")
        assert (await producer.entries(request["responseChannel"]))[0]["toolCallId"] == "call_1"

    elsewhere = minimal(5) | {"responseChannel": "rpc.plugins.responses:mine"}
    await producer.submit(elsewhere)
    for request in (elsewhere, minimal(5)):
        assert "it must be" in (await producer.error(request))[2]
    nameless = minimal(6)
    await producer.submit({key: value for key, value in nameless.items() if key != "correlationId"})
    assert "correlationId" in (await producer.error(nameless))[2]


class NoTools(ToolLookup):
    """A worker whose catalog has lost its tools."""

    def own(self, name: str) -> ToolEntry | None:
        return None

    async def find(self, name: str) -> Sequence[ToolEntry]:
        return ()


async def test_a_call_that_was_begun_is_not_said_to_be_of_an_unknown_tool_when_the_catalog_is_another(
    producer: Producer, caller: Caller
) -> None:
    await caller.open()
    begun = msgspec.structs.replace(await caller.request(), deadline=0)
    await caller.submit(begun)
    delivery = await caller.deliver("gone")
    await caller.adopt(delivery)
    await caller.run(delivery)
    await caller.claim(delivery, "b")

    submitted = json.loads(encode_request(msgspec.structs.replace(begun, deadline=await caller.now_ms() + 60_000)))
    del submitted["server"], submitted["tool"]
    adoption = RequestAdopter(caller.worker, NoTools(), KEYS, RedisClock(), default_timeout_ms=1000)
    taken = await adoption.adopt(delivery.entry, "b", {b"event": json.dumps(submitted).encode()})

    assert taken
    assert (taken.request.server, taken.request.tool) == ("demo", "add")
    assert isinstance(await caller.start(taken), replies.Abandoned)


async def test_an_entry_of_an_engine_of_the_previous_release_is_run(producer: Producer, caller: Caller) -> None:
    """It has a ledger, and no mark that says so."""
    request = await caller.call("add", a=2, b=3)
    [(entry, fields)] = await producer.redis.xrange(KEYS.requests)
    await producer.redis.delete(KEYS.requests)
    await producer.redis.xadd(KEYS.requests, {"event": fields[b"event"]}, id=entry)
    await producer.work()

    assert (await caller.outcome(request)).state == "succeeded"


@promise("the mistakes of other producers have a ticket of their own, and neither page anybody nor count as dead calls")
async def test_the_mistakes_of_a_producer_are_counted_apart_from_calls_that_died_and_logged_with_the_subject(
    producer: Producer, caller: Caller, caplog: pytest.LogCaptureFixture
) -> None:
    health = free_port()
    await producer.work(health_port=health)
    await producer.submit(minimal(1, "demo__typo") | {"subject": "ann"})
    await producer.submit("no json", correlationId=call_id(2), subject="bob")
    await caller.command("XADD", KEYS.requests, "*", "event", '{"subject": "eve"}', "ledger", "1")

    async def counted() -> bool:
        async with httpx2.AsyncClient(trust_env=False) as http:
            text = (await http.get(f"http://127.0.0.1:{health}/metrics")).text
        counts = re.findall(r"^plugins_dead_letters_total\{(.*)$", text, re.MULTILINE)
        return counts == ['cause="producer"} 2.0', 'cause="call"} 1.0']

    await wait_until(counted, what="two mistakes and one other dead letter")
    logged = [record.__dict__ for record in caplog.records if "dead letter" in record.getMessage()]
    assert sorted(record["subject"] for record in logged) == ["ann", "bob", "eve"]


# --- docs/wire.md ---

DOCUMENT = (ROOT / "docs" / "wire.md").read_text()
CAPTURED = re.compile(r"<!-- captured: (.+?) -->\s*```json\n(.*?)```", re.DOTALL)


def settled(value: object) -> object:
    """Without what is another in every run: durations and times."""
    if isinstance(value, dict):
        fields = cast("dict[str, object]", value)
        return {name: 12 if name == "durationMs" else settled(each) for name, each in fields.items()}
    if isinstance(value, str):
        return re.sub(r'("durationMs":)\d+', r"\g<1>12", re.sub(r"\b1[78]\d{11}\b", "1795381663000", value))
    return 1795381663000 if isinstance(value, int) and value > 10**12 else value


@promise("the examples of docs/wire.md are what is seen on the wire")
async def test_every_example_of_the_document_is_what_was_seen(producer: Producer, caller: Caller) -> None:
    await producer.work()
    await wait_until(lambda: producer.redis.hexists(KEYS.catalog_of("demo"), "version"), 20)
    seen: dict[str, Any] = {}

    request = minimal(1)
    seen["the smallest request"] = request
    await producer.submit(request)
    seen["started"], seen["finished"] = await producer.answer(request["responseChannel"])

    slow = minimal(2, "demo__slow_job", seconds=0.8, steps=2) | {"mailbox": KEYS.mailbox("mine")}
    await producer.submit(slow)
    seen["progress"] = (await producer.answer(slow["responseChannel"]))[1]
    notified = await producer.redis.xrange(KEYS.mailbox("mine"))
    seen["a ring"] = {name.decode(): value.decode() for name, value in notified[-1][1].items()}

    failing = minimal(3, "demo__fail", message="no such luck")
    await producer.submit(failing)
    seen["a tool that failed"] = await producer.outcome(failing)

    late = minimal(4) | {"deadline": await caller.now_ms() - 1}
    await producer.submit(late)
    seen["too late"] = await producer.outcome(late)

    unknown = minimal(5, "demo__nothing")
    await producer.submit(unknown)
    (seen["refused"],) = await producer.answer(unknown["responseChannel"])

    complete = approve(await caller.request(), "somebody")
    seen["all fields"] = json.loads(encode_request(complete)) | {
        "correlationId": call_id(6),
        "responseChannel": KEYS.response(call_id(6)),
    }
    seen["a reply"] = json.loads(encode_reply(CallFinished(DONE)))

    shown = {name: json.loads(text) for name, text in CAPTURED.findall(DOCUMENT)}
    assert {name: settled(value) for name, value in seen.items()} == {
        name: settled(value) for name, value in shown.items()
    }
