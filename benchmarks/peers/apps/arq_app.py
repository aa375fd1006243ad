"""arq. Worker and client poll every 5 milliseconds instead of every 500."""
# pyright: basic, reportMissingImports=false

import os

from arq import create_pool
from arq.connections import RedisSettings

settings = RedisSettings.from_dsn(os.environ["REDIS_URL"])


async def echo(_, text):
    return text


class WorkerSettings:
    functions = (echo,)
    redis_settings = settings
    poll_delay = 0.005
    max_jobs = 64


async def start():
    global pool  # noqa: PLW0603
    pool = await create_pool(settings)


async def call(text):
    job = await pool.enqueue_job("echo", text)
    return await job.result(timeout=30, poll_delay=0.005)
