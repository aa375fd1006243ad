"""A worker that runs nothing: it answers calls at a steady rate, with the real scripts, from a process of its own."""

import asyncio
import multiprocessing
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

import msgspec

from callstream_runtime.connections import command_client, thread_client
from plugins_contract.keys import Keys
from tests.support.ledger import Bench, answered
from tests.support.waiting import wait_until

WORKER = "worker"
"""The name of its consumer, and of the ACL user as which it logs in: so it can be distinguished from others."""
NOTIFIED, MUTE = "notified", "mute"
"""How each answer begins; the time on the monotonic clock at which it was sent follows."""
CONNECTIONS = 8


@dataclass(frozen=True)
class Pace:
    """How it answers. One in `mute_every` answers (0: none) sends no notification: as if the mailbox had lost it."""

    per_second: int
    seconds: float
    mute_every: int

    @property
    def replies(self) -> int:
        return int(self.per_second * self.seconds)


@asynccontextmanager
async def replying(url: str, pace: Pace) -> AsyncGenerator[None]:
    """It answers what is on the stream at `url`; the block is left when it has ended."""
    process = multiprocessing.get_context("spawn").Process(target=work, args=(url, pace), daemon=True)
    process.start()
    try:
        yield
        await asyncio.to_thread(process.join, pace.seconds + 30)
    finally:
        process.kill()
        process.join()
    if process.exitcode:
        raise RuntimeError(f"the scripted worker ended with {process.exitcode}")


def work(url: str, pace: Pace) -> None:
    asyncio.run(_work(urlsplit(url)._replace(netloc=f"{WORKER}:any@{urlsplit(url).netloc}").geturl(), pace))


async def _work(url: str, pace: Pace) -> None:
    redis = command_client(url, connections=CONNECTIONS)
    with thread_client(url) as thread:
        bench = Bench(redis, thread)
        hands = asyncio.Semaphore(CONNECTIONS)

        async def answer(*, mute: bool) -> None:
            async with hands:
                await _answer(bench, mute=mute)

        began = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(pace.replies):
                await asyncio.sleep(max(0.0, began + number / pace.per_second - time.monotonic()))
                mute = pace.mute_every > 0 and number % pace.mute_every == 0
                tasks.create_task(answer(mute=mute))
    await redis.aclose()


async def _answer(bench: Bench, *, mute: bool) -> None:
    delivery = await wait_until(lambda: bench.next_delivery(WORKER), what="a call that waits")
    assert delivery
    fence = await bench.run(delivery)
    if mute:
        elsewhere = msgspec.structs.replace(delivery.request, mailbox=Keys().mailbox("no-engine"))
        delivery = replace(delivery, request=elsewhere)
    outcome = answered(f"{MUTE if mute else NOTIFIED} {time.monotonic()}")
    await bench.worker.complete(delivery, fence, outcome)
