"""A call while its server waits for a person in the middle of it: its slot, its times, and what bounds it."""

import asyncio
from typing import Any, cast

import msgspec
from mcp.types import CallToolResult, ElicitRequestFormParams, ElicitRequestParams

from callstream_runtime.encryption_keys import cipher_of
from plugins_contract.encryption import open_request, seal_request
from plugins_contract.errors import ErrorCode
from plugins_contract.held import HeldCall, HeldState, readable
from plugins_contract.keys import Keys
from plugins_contract.messages import ROUND_VERSION, decode_request, encode_request
from plugins_contract.questions import NextRound
from plugins_mcp.held_calls import HeldCalls
from plugins_mcp.mcp import Answered, CallResult, Dialogue, InputAsked, Rejected
from plugins_mcp.mcp.dialogue import Slot
from plugins_mcp.mcp.questions import asked_in_call
from plugins_mcp.running_call import StillOpen
from tests.marks import promise
from tests.support.handling import delivery
from tests.support.waiting import wait_until

ASKS: ElicitRequestParams = ElicitRequestFormParams(
    message="When?", requested_schema={"type": "object", "properties": {}}
)
REQUEST = msgspec.structs.replace(delivery().request, may_ask=True)
DONE = Answered(CallToolResult(content=[]))


@promise("a server of an earlier protocol asks in the middle of a call, which has neither slot nor lease meanwhile")
async def test_no_time_of_a_call_passes_while_a_person_is_asked() -> None:
    slots, dialogue = asyncio.Semaphore(1), Dialogue(1, lambda _: None, lambda _: None)
    async with asyncio.timeout(60) as total, asyncio.timeout(30) as idle:
        slot = dialogue.slot = Slot(slots, total)
        slot.idles(idle, 30)
        await slot.take()
        asking = asyncio.create_task(dialogue.ask(ASKS, asked_in_call))
        assert isinstance(await dialogue.asked, InputAsked)
        assert (total.when(), idle.when(), slots.locked()) == (None, None, False)

        await slots.acquire()  # another call
        going_on = asyncio.create_task(
            dialogue.go_on(NextRound(2, {"question": {"action": "decline"}}), lambda _: None, 40)
        )
        await asyncio.sleep(0)
        assert dialogue.waits, "until it has a slot"
        slots.release()
        await going_on
        assert (await asking).action == "decline"
        left = (total.when() or 0) - asyncio.get_running_loop().time()
        assert 30 < left <= 40, "the time of the next round"
        assert idle.when() is not None
        assert slots.locked()


async def open_call() -> tuple[StillOpen, asyncio.Event]:
    dialogue, end = Dialogue(1, lambda _: None, lambda _: None), asyncio.Event()

    async def call() -> CallResult:
        asking = asyncio.create_task(dialogue.ask(ASKS, asked_in_call))
        await end.wait()
        asking.cancel()
        return DONE

    still = StillOpen(asyncio.create_task(call()), dialogue)
    await wait_until(dialogue.asked.done)
    return still, end


async def test_a_worker_keeps_so_many_calls_open_and_no_more() -> None:
    held = HeldCalls(cast("Any", None), Keys(), "sessions-a", again_seconds=1, most=1)
    first, end = await open_call()
    result = held.hold(REQUEST, first)
    assert isinstance(result, InputAsked)
    assert result.required.holder == "sessions-a"
    second, other_end = await open_call()
    refused = held.hold(msgspec.structs.replace(REQUEST, correlation_id="another"), second)
    assert isinstance(refused, Rejected)
    assert refused.code is ErrorCode.OVERLOADED
    for each in (end, other_end):
        each.set()
    await asyncio.wait([first.work, second.work])


@promise("an answer reaches the worker that keeps the call open, whichever reads it")
def test_the_holder_of_a_sealed_round_is_readable_and_nothing_else() -> None:
    brings = NextRound(2, {"question": {"action": "accept", "content": {"day": "canary"}}}, holder="sessions-a")
    request = msgspec.structs.replace(REQUEST, next_round=brings, event_version=ROUND_VERSION)
    cipher = cipher_of(["n" * 64])
    encoded = encode_request(seal_request(request, cipher))
    assert b"canary" not in encoded
    received = decode_request(encoded)
    assert received.next_round == NextRound(2, holder="sessions-a")
    assert open_request(received, cipher).next_round == brings


def test_what_cannot_be_read_of_open_calls_is_left_out() -> None:
    row = msgspec.json.encode(HeldCall("sessions-a", HeldState.OPEN))
    bad = {b"a:x": row, b"a:": row, b"a:9999999": row, b"\xff": row, b"b": b"{}", b"c": b"["}
    assert dict(readable({b"a": row, b"a:2": row} | bad)) == dict.fromkeys(
        ("a", "a:2"), HeldCall("sessions-a", HeldState.OPEN)
    )
