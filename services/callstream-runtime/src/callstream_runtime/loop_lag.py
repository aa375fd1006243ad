"""How late the event loop of this process is: by the clock, and by its own work."""

import asyncio
import time

from prometheus_client import CollectorRegistry, Histogram

LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
TICK_SECONDS = 0.1


def lag_histogram(name: str, registry: CollectorRegistry) -> Histogram:
    """The histogram of one service. Its label `clock` is `wall` or `processor`."""
    return Histogram(name, "How late the event loop is.", ["clock"], registry=registry, buckets=LAG_BUCKETS)


async def observe_lag(histogram: Histogram) -> None:
    """Observe how late a timer is, ten times a second, until cancelled. Runs in the thread of the loop.

    `wall` is what everybody waited. `processor` is how much of it the loop's own thread may have worked: the rest was
    taken by other threads or other processes.
    """
    wall, processor = histogram.labels("wall"), histogram.labels("processor")
    loop = asyncio.get_running_loop()
    while True:
        due, worked = loop.time() + TICK_SECONDS, time.thread_time()
        await asyncio.sleep(TICK_SECONDS)
        late = max(0.0, loop.time() - due)
        wall.observe(late)
        processor.observe(min(late, time.thread_time() - worked))
