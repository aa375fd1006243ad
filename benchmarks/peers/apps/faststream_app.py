"""FastStream: a consumer group of a stream, and replies over pub/sub, which are not stored. Nothing is tuned further.

https://faststream.ag2.ai/latest/redis/rpc/: `broker.request`. `faststream run` uses uvloop where it is installed.
"""
# pyright: basic, reportMissingImports=false

import os

from faststream import FastStream
from faststream.redis import RedisBroker, StreamSub

broker = RedisBroker(os.environ["REDIS_URL"], max_connections=1000)  # one for each request in flight
app = FastStream(broker)


@broker.subscriber(stream=StreamSub("echo", group="echo", consumer="worker"))
async def echo(text: str) -> str:
    return text


async def start():
    await broker.connect()


async def call(text):
    reply = await broker.request(text, stream="echo", timeout=30)
    return await reply.decode()
