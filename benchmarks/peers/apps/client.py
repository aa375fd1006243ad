"""Runs calls of one peer: reads `<calls> <in flight> <seconds>` from standard input, and writes how many seconds each
call took, and all of them. No call begins after `seconds`.

python client.py MODULE
"""
# pyright: basic

import asyncio
import importlib
import json
import sys
import time

TEXT = "The quick brown fox jumps over the lazy dog."


async def block(call, calls, in_flight, seconds):
    left = iter(range(calls))
    times = []
    began_all = time.perf_counter()

    async def caller():
        for _ in left:
            began = time.perf_counter()
            if began - began_all > seconds:
                return
            assert await call(TEXT) == TEXT
            times.append(time.perf_counter() - began)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    return times, time.perf_counter() - began_all


async def main():
    module = importlib.import_module(sys.argv[1])
    if hasattr(module, "start"):
        await module.start()
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        print(json.dumps(await block(module.call, *map(int, line.split()))), flush=True)


try:
    import uvloop
except ImportError:
    asyncio.run(main())
else:
    uvloop.run(main())
