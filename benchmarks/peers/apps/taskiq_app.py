"""taskiq with streams, which acknowledge tasks. As documented, the caller looks for the result every 200 ms.

https://pypi.org/project/taskiq-redis/: RedisStreamBroker where durability is required, results that expire, `taskiq
worker`, which starts two processes, and `wait_result()`. `taskiq worker` uses uvloop where it is installed. Tuned,
there is one process, and the caller looks every millisecond.
"""
# pyright: basic, reportMissingImports=false

import os

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

CHECK_SECONDS = 0.001 if "TUNED" in os.environ else 0.2
URL = os.environ["REDIS_URL"]
broker = RedisStreamBroker(URL).with_result_backend(RedisAsyncResultBackend(URL, result_ex_time=60))


@broker.task
async def echo(text: str) -> str:
    return text


async def start():
    await broker.startup()


async def call(text):
    task = await echo.kiq(text)
    result = await task.wait_result(check_interval=CHECK_SECONDS, timeout=30)
    return result.return_value
