"""Celery: prefork workers, results in Redis. It has no asyncio client, so callers wait in threads."""
# pyright: basic, reportMissingImports=false

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor

from celery import Celery

URL = os.environ["REDIS_URL"]
app = Celery("celery_app", broker=URL, backend=URL)
threads = ThreadPoolExecutor(64)


@app.task
def echo(text):
    return text


async def call(text):
    return await asyncio.get_running_loop().run_in_executor(threads, lambda: echo.delay(text).get(timeout=30))
