"""Several calls in one reply run at the same time. The model reads their results in the order of the calls."""

import asyncio

from dialog_engine.model import RoundComplete, ToolMessage, ToolStatus, ToolStep
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, is_step
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import FakeCatalog, FakeWorker, gives, succeeded, tool


@promise("parallel calls run at once")
async def test_calls_of_one_reply_run_in_parallel_and_end_in_any_order() -> None:
    slow = asyncio.Event()
    model = ScriptedModel(asks(("time__rome", ""), ("time__oslo", "")), says("Both."))
    worker = FakeWorker({"time__rome": gives(succeeded("noon"), slow), "time__oslo": gives(succeeded("one"))})
    async with FakeEngine(model, tools=FakeCatalog(tool("time__rome"), tool("time__oslo")), worker=worker) as engine:
        turn = await engine.begun("What time is it in Rome and in Oslo?", is_step(ToolStatus.SUCCEEDED, "time__oslo"))
        await engine.until(turn, is_step(ToolStatus.RUNNING, "time__rome"))
        slow.set()
        events = await engine.seen(turn)

    ended = [e.call.name for e in events if isinstance(e, ToolStep) and e.status is ToolStatus.SUCCEEDED]
    assert ended == ["time__oslo", "time__rome"]
    results = [message for message in model.requests[1].messages if isinstance(message, ToolMessage)]
    assert [result.content for result in results] == ["noon", "one"]
    assert events.count(RoundComplete(1)) == 1
