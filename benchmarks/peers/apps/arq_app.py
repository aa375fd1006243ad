"""arq. As documented, the worker looks for jobs and the caller for the result every 500 ms; ten jobs run at once.

https://arq-docs.helpmanual.io: the first example, `Job.result(poll_delay=0.5)`, `Worker(max_jobs=10, poll_delay=0.5)`.
Tuned, both look every 5 ms, 64 jobs run at once, and the caller uses uvloop.
"""
# pyright: basic, reportMissingImports=false

import os

from arq import create_pool
from arq.connections import RedisSettings

TUNED = "TUNED" in os.environ
POLL_SECONDS = 0.005 if TUNED else 0.5
settings = RedisSettings.from_dsn(os.environ["REDIS_URL"])


async def echo(_, text):
    return text


class WorkerSettings:
    functions = (echo,)
    redis_settings = settings
    poll_delay = POLL_SECONDS
    max_jobs = 64 if TUNED else 10


async def start():
    global pool  # noqa: PLW0603
    pool = await create_pool(settings)


async def call(text):
    job = await pool.enqueue_job("echo", text)
    return await job.result(timeout=30, poll_delay=POLL_SECONDS)
