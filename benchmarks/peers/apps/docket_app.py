"""pydocket: tasks on streams with leases, results in Redis, of which the caller is notified by pub/sub.

https://docket.lol/en/latest/production/#cli-usage runs 50 tasks at once. Tuned, 64 run at once, and the caller uses
uvloop.
"""
# pyright: basic, reportMissingImports=false

import os
from datetime import timedelta

from docket import Docket

docket = Docket(name="bench", url=os.environ["REDIS_URL"], execution_ttl=timedelta(seconds=60))


async def echo(text: str) -> str:
    return text


tasks = [echo]


async def start():
    await docket.__aenter__()


async def call(text):
    execution = await docket.add(echo)(text)
    return await execution.get_result(timeout=timedelta(seconds=30))
