"""Large results on their way from a worker to the store of an engine, at a real port, and attacks on that port."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest

from callstream_runtime.encryption_keys import cipher_of
from plugins_contract import large_results
from plugins_contract.encryption import CLEAR, Cipher
from plugins_contract.large_results import DIGEST, FENCE, LARGE_BYTES, MAX_BYTES, PATH, SIGNATURE, LargeResult
from plugins_contract.ledger import Delivery, WorkerLedger
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome
from plugins_contract.signing import RequestKeys, read_request_keys
from plugins_mcp.large_results import LargeResults
from tests.integration.engines import Engine, Model, Start, Stream, publish
from tests.integration.test_http_turns import DRAW
from tests.marks import promise
from tests.support.ledger import Bench
from tests.support.waiting import wait_until

MARKER = "canary-of-a-large-result"
TEXT = MARKER + "x" * 900_000
OUTCOME = ToolOutcome(CallState.SUCCEEDED, (TextBlock(TEXT), MediaBlock("image/png", "iVBORyBub3QgcmVhbGx5")))
KEY = "k" * 64
USER_KEY = "a-key-of-sixteen-characters"


def files_with(folder: Path, marker: str) -> list[str]:
    return [each.name for each in folder.glob("engine.sqlite3*") if marker.encode() in each.read_bytes()]


@dataclass
class Begun:
    """A call that a worker has begun, and the engine that waits for it."""

    engine: Engine
    stream: Stream
    delivery: Delivery
    fence: int
    url: str
    keys: RequestKeys
    cipher: Cipher

    def result(self, outcome: ToolOutcome = OUTCOME, fence: int | None = None) -> LargeResult:
        found = large_results.to_send(self.delivery.request, fence or self.fence, outcome, self.cipher)
        assert found
        return found

    async def put(self, result: LargeResult, **fields: str) -> httpx2.Response:
        async with httpx2.AsyncClient(base_url=self.url, trust_env=False, verify=False) as http:
            headers = result.fields(self.keys) | fields
            return await http.put(f"{PATH}{result.correlation_id}", content=result.body, headers=headers)


@asynccontextmanager
async def begun(
    start: Start, bench: Bench, redis_url: str, model: Model, folder: Path, *, encrypted: bool = False
) -> AsyncGenerator[Begun]:
    publish(redis_url, DRAW)
    model.will_call("demo__draw")
    (keys_file := folder / "request_keys").write_text(KEY)
    changes: dict[str, Any] = {"request_keys_file": keys_file, "accept_unsigned_catalogs": True}
    if encrypted:
        (folder / "encryption_keys").write_text("e" * 64)
        changes["encryption_keys_file"] = folder / "encryption_keys"
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    async with start(operations_port=port, api_keys={"ada": USER_KEY}, **changes) as engine, AsyncExitStack() as stack:
        engine.client.headers["authorization"] = f"Bearer {USER_KEY}"
        asked = engine.stream("POST", "/v1/chat", json={"message": "Draw"})
        stream = await stack.enter_async_context(asked)
        await wait_until(bench.backlog)
        delivery = await bench.deliver()
        fence = await bench.run(delivery)
        cipher = cipher_of(["e" * 64]) if encrypted else CLEAR
        url = f"http://127.0.0.1:{port}"
        yield Begun(engine, stream, delivery, fence, url, read_request_keys(keys_file), cipher)


@promise("a result past 256 KiB goes to the store of an engine, and not through Redis")
@pytest.mark.parametrize("encrypted", [False, True])
async def test_a_large_result_goes_from_the_worker_to_the_store_and_into_the_answer(
    start: Start, bench: Bench, redis_url: str, model: Model, tmp_path: Path, encrypted: bool
) -> None:
    async with begun(start, bench, redis_url, model, tmp_path, encrypted=encrypted) as call:
        request = call.delivery.request
        sent = await LargeResults(call.url, call.keys, call.cipher).sent(request, call.fence, OUTCOME)
        assert sent.kept
        assert len(msgspec.json.encode(sent)) < 1000
        await WorkerLedger(bench.redis, bench.keys, call.cipher).complete(call.delivery, call.fence, sent)
        events = [event async for event in call.stream]
        shown = next(event.data["result"] for event in events if event.data.get("status") == "succeeded")
        assert (await call.engine.client.get(shown["textUrl"])).text == TEXT
        assert (await call.engine.client.get(shown["media"][0]["url"])).content == b"\x89PNG not really"
        assert events[-1].data["reason"] == "stop"
        late = await call.put(call.result(fence=call.fence + 1))
        assert (late.status_code, late.json()["code"]) == (409, "CALL_ENDED")
        [row] = await bench.redis.keys("rpc.plugins.responses:*")
        assert await bench.redis.memory_usage(row) < 16 * 1024
    if encrypted:
        assert await asyncio.to_thread(files_with, tmp_path, MARKER) == []


async def test_what_the_store_has_lost_is_said_and_the_call_is_not_run_again(
    start: Start, bench: Bench, redis_url: str, model: Model, tmp_path: Path
) -> None:
    async with begun(start, bench, redis_url, model, tmp_path) as call:
        sent = large_results.in_place_of(OUTCOME, "0" * 64)
        await bench.worker.complete(call.delivery, call.fence, sent)
        events = [event async for event in call.stream]
        [shown] = [event.data["result"] for event in events if event.data.get("status") == "succeeded"]
        assert "is lost" in shown["text"]


@promise("nobody without the request keys, no other call and no former worker can write a large result")
async def test_results_that_are_not_signed_for_this_call_fence_and_body_are_refused(
    start: Start, bench: Bench, redis_url: str, model: Model, tmp_path: Path
) -> None:
    async with begun(start, bench, redis_url, model, tmp_path) as call:
        good, other = call.result(), call.result(ToolOutcome(CallState.SUCCEEDED, (TextBlock("y" * LARGE_BYTES),)))
        forged = other.fields(RequestKeys(["z" * 64]))
        attacks = [
            ({SIGNATURE: ""}, 403),
            ({SIGNATURE: forged[SIGNATURE]}, 403),
            ({FENCE: str(call.fence + 1)}, 403),
            ({DIGEST: other.digest}, 403),
            ({FENCE: "one"}, 422),
            (other.fields(call.keys), 422),  # signed, with the body of another one
        ]
        for fields, code in attacks:
            assert (await call.put(good, **fields)).status_code == code, fields
        elsewhere = msgspec.structs.replace(call.delivery.request, correlation_id="another")
        stolen = large_results.to_send(elsewhere, call.fence, OUTCOME, CLEAR)
        assert stolen
        assert (await call.put(stolen)).status_code == 409, "no such call"
        junk = LargeResult(good.correlation_id, call.fence, large_results.digest_of(b"{}"), b"{}")
        assert (await call.put(junk)).status_code == 422
        huge = LargeResult(good.correlation_id, call.fence, "0" * 64, b" " * (MAX_BYTES + 1))
        assert (await call.put(huge)).status_code == 413
        public = await call.engine.client.put(
            f"{PATH}{good.correlation_id}", content=good.body, headers=good.fields(call.keys)
        )
        assert public.status_code == 404, "at the port of users"
        assert (await call.put(call.result(fence=call.fence + 1))).status_code == 204
        assert (await call.put(good)).status_code == 409, "a worker that has lost the call"


@pytest.mark.parametrize("answers", ["nobody", "never", "404"])
async def test_where_no_engine_takes_it_a_result_goes_through_redis(
    bench: Bench, answers: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if answers == "404":
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        await reader.read()
        writer.close()

    request = msgspec.structs.replace(await bench.request(), keeps_large=True)
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    if answers == "nobody":
        server.close()
        await server.wait_closed()
    results = LargeResults(f"http://127.0.0.1:{port}", RequestKeys([KEY]), CLEAR, timeout_seconds=1.5)
    assert await results.sent(request, 1, OUTCOME) is OUTCOME
    assert "goes through Redis" in caplog.text
    server.close()
    small = ToolOutcome(CallState.SUCCEEDED, (TextBlock("x" * 100),))
    assert await results.sent(request, 1, small) is small
    old = msgspec.structs.replace(request, keeps_large=msgspec.UNSET)
    assert await results.sent(old, 1, OUTCOME) is OUTCOME
