"""Runs calls of one peer: reads `<calls> <in flight>` from standard input, writes the seconds of each call and of all.

python client.py MODULE
"""
# pyright: basic

import asyncio
import importlib
import json
import sys
import time

TEXT = "The quick brown fox jumps over the lazy dog."


async def block(call, calls, in_flight):
    left = iter(range(calls))
    times = []

    async def caller():
        for _ in left:
            began = time.perf_counter()
            assert await call(TEXT) == TEXT
            times.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return times, time.perf_counter() - began


async def main():
    module = importlib.import_module(sys.argv[1])
    if hasattr(module, "start"):
        await module.start()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        calls, in_flight = map(int, line.split())
        print(json.dumps(await block(module.call, calls, in_flight)), flush=True)


try:
    import uvloop
except ImportError:
    asyncio.run(main())
else:
    uvloop.run(main())
