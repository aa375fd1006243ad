"""Several calls in one reply run at the same time; the model reads their results in the order in which it asked."""

import asyncio

import pytest

from dialog_engine.model import RoundComplete, ToolMessage, ToolStatus, ToolStep
from tests.support.twins import ScriptedModel, Shelf, Stage, Workshop, asks, gives, is_step, says, succeeded, tool

pytestmark = pytest.mark.anyio


async def test_calls_of_one_reply_run_at_once_and_may_end_in_any_order() -> None:
    slow = asyncio.Event()
    model = ScriptedModel(asks(("time__rome", ""), ("time__oslo", "")), says("Both."))
    workshop = Workshop({"time__rome": gives(succeeded("noon"), slow), "time__oslo": gives(succeeded("one"))})
    async with Stage(model, tools=Shelf(tool("time__rome"), tool("time__oslo")), workshop=workshop) as stage:
        turn = await stage.turns.start("ada", None, "What time is it in Rome and in Oslo?")
        await stage.until(turn, is_step(ToolStatus.SUCCEEDED, "time__oslo"))
        await stage.until(turn, is_step(ToolStatus.RUNNING, "time__rome"))
        slow.set()
        events = await stage.seen(turn)

    ended = [e.call.name for e in events if isinstance(e, ToolStep) and e.status is ToolStatus.SUCCEEDED]
    assert ended == ["time__oslo", "time__rome"]
    results = [message for message in model.requests[1].messages if isinstance(message, ToolMessage)]
    assert [result.content for result in results] == ["noon", "one"]
    assert events.count(RoundComplete(1)) == 1
