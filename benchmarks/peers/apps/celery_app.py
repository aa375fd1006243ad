"""Celery: one process for each core, results in Redis, of which `get` is notified by pub/sub. Nothing is tuned further.

https://docs.celeryq.dev/en/stable/userguide/optimizing.html#prefetch-limits recommends a multiplier such as 64 for many
short tasks. Celery has no asyncio client, so callers wait in threads.
"""
# pyright: basic, reportMissingImports=false

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from celery import Celery

URL = os.environ["REDIS_URL"]
app = Celery("celery_app", broker=URL, backend=URL)
app.conf.worker_prefetch_multiplier = 64
threads = ThreadPoolExecutor(64)


@app.task
def echo(text):
    return text


async def call(text):
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: echo.delay(text).get(timeout=30))
