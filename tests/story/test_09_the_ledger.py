"""The ledger: the states of one call in Redis, on a real server. Engine and worker share nothing else."""

from redis.asyncio import Redis

from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger, WorkerLedger
from plugins_contract.ledger.replies import AlreadyFinished, Completed, Queued, Run
from plugins_contract.outcomes import CallFinished, CallState
from tests.support.ledger import DONE, EXPIRED, MAX_STARTS, Bench


async def test_the_ledger_states_of_one_call(bench: Bench, redis: Redis, keys: Keys) -> None:
    engine, worker = EngineLedger(redis, keys, cipher=CLEAR), WorkerLedger(redis, keys, cipher=CLEAR)
    request = await bench.request("once")

    assert isinstance(await engine.enqueue(request), Queued)
    delivery = await bench.deliver("a worker")
    started = await worker.start(delivery, max_starts=MAX_STARTS, expired=EXPIRED)
    assert isinstance(started, Run)  # now this worker alone may call the MCP server
    assert isinstance(await worker.complete(delivery, started.fence, DONE), Completed)

    assert await bench.channel(request) == [CallFinished(DONE)]  # one terminal answer
    assert (await bench.ledger(request))["state"] == CallState.SUCCEEDED
    assert await bench.backlog() == 0  # nothing is left in the stream
    assert await engine.enqueue(request) == AlreadyFinished(DONE)  # asked again: answered, not run
