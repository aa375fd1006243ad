"""taskiq with streams, which acknowledge tasks. The result is polled every millisecond instead of every 200."""
# pyright: basic, reportMissingImports=false

import os

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

URL = os.environ["REDIS_URL"]
broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=60))


@broker.task
async def echo(text: str) -> str:
    return text


async def start():
    await broker.startup()


async def call(text):
    task = await echo.kiq(text)
    result = await task.wait_result(check_interval=0.001, timeout=30)
    return result.return_value
