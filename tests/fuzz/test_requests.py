"""Entries of the Redis stream and control messages as a hostile producer writes them, to a worker that has a key.

Nothing that is not signed runs a tool; every entry is answered or becomes a dead letter; the worker goes on, which a
signed request behind each batch shows.
"""

import json
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plugins_contract.encryption import CLEAR
from plugins_contract.ledger import EngineLedger
from plugins_contract.messages import ToolCallRequested, encode_request, new_id
from plugins_contract.outcomes import CallState
from plugins_contract.signing import RequestKeys
from tests.fuzz.limits import CONNECTED, TIMES, Attempt, watched
from tests.fuzz.mutations import ODD, changed_bytes, changed_json, written
from tests.integration.servers.scripted import Request, scripted
from tests.marks import promise
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until
from tests.support.working import Caller, calling, working

OWN = RequestKeys(["o" * 32])
FOREIGN = RequestKeys(["f" * 32])
BATCH = 20
FIELDS = (b"event", b"signature", b"ledger", b"", b"x", b"\xff", b"traceparent")


@promise("hostile input of any side gives a named error, and others are served")
@settings(CONNECTED, max_examples=5 * TIMES)
@given(random=st.randoms(use_true_random=True))
async def test_what_is_not_signed_runs_nothing_and_every_entry_is_answered(worker: Attempt, random: Random) -> None:
    async with watched():
        await worker(random)


@pytest.fixture(scope="module")
async def worker() -> AsyncGenerator[Attempt]:
    """A worker with a key and one tool, and a Redis of its own; each attempt is one batch."""
    runs = Counter[str]()

    async def note(request: Request) -> None:
        runs[json.dumps(request.params["arguments"])] += 1
        await request.text("done")

    with tempfile.TemporaryDirectory() as folder:
        redis = LocalServer(embedded_binary(), Path(folder))
        redis.start()
        config, keys = Path(folder) / "mcp.json", Path(folder) / "keys"
        keys.write_text("o" * 32)
        try:
            async with scripted(note=note) as server:
                server.keep_requests = False
                config.write_text(json.dumps({"mcpServers": {"demo": {"url": server.url}}}))
                async with calling(redis.url) as caller, working(redis.url, config, request_keys_file=keys):
                    attack = Attack(caller, runs)
                    await attack.goes_on()
                    yield attack.attempt
        finally:
            redis.stop()


class Attack:
    """Writes as anybody who reaches Redis can."""

    def __init__(self, caller: Caller, runs: Counter[str]) -> None:
        self._caller = caller
        self._runs = runs

    async def attempt(self, random: Random) -> None:
        """A batch, then a request that must run. Raises AssertionError if anything else has run, or is left."""
        self._runs.clear()
        redis, keys = self._caller.redis, self._caller.keys
        for _ in range(BATCH):
            await redis.xadd(keys.requests, await self._entry(random))
            if random.random() < 0.5:
                await redis.publish(keys.control, self._control(random))
        await self.goes_on()
        await wait_until(self._caller.backlog_is_empty, 20, what="the end of the backlog")
        await wait_until(self._caller.nothing_pending, 20, what="an answer to each entry")
        assert sum(self._runs.values()) == 1, self._runs
        await redis.delete(keys.dead)

    async def goes_on(self) -> None:
        """A signed request runs."""
        request = await self._request(mark="signed")
        await EngineLedger(self._caller.redis, self._caller.keys, OWN, cipher=CLEAR).enqueue(request)
        outcome = await self._caller.outcome(request)
        assert outcome.state is CallState.SUCCEEDED, outcome

    async def _request(self, mark: str) -> ToolCallRequested:
        request = await self._caller.request()
        changes = {"server": "demo", "tool": "note", "tool_name": "demo__note", "arguments": {"note": mark}}
        return msgspec.structs.replace(request, **changes)

    async def _entry(self, random: Random) -> dict[bytes, bytes]:
        request = await self._request(mark=f"hostile {new_id()}")
        right = encode_request(request)
        event = right
        for _ in range(random.choice([0, 1, 1, 2, 4])):
            event = written(changed_json(json.loads(right), random), random)
        for _ in range(random.choice([0, 0, 0, 1, 3])):
            event = changed_bytes(event, random)
        marked = random.random() < 0.5
        match random.randint(0, 5):
            case 0:
                signature = FOREIGN.sign(event, has_ledger=marked).encode()
            case 1:
                # The signature of another event: a harmless one, or this one before it was changed.
                signature = OWN.sign(right if event != right else b"{}", has_ledger=marked).encode()
            case 2:
                signature = OWN.sign(event, has_ledger=not marked).encode()[:-1]
            case 3:
                signature = random.randbytes(random.randint(0, 70))
            case _:
                signature = b""
        fields = {b"event": event, b"signature": signature} | ({b"ledger": b"1"} if marked else {})
        if random.random() < 0.3:
            fields[random.choice(FIELDS)] = random.randbytes(random.randint(0, 50))
        if random.random() < 0.1:
            fields.pop(random.choice([b"event", b"signature"]))
        return fields or {b"": b""}

    def _control(self, random: Random) -> bytes:
        message = {"kind": "cancel", "correlationId": random.choice(["", "x", "\ud800", new_id(), "*" * 10_000])}
        data = written(changed_json(message, random) if random.random() < 0.7 else random.choice(ODD), random)
        return changed_bytes(data, random) if random.random() < 0.5 else data
