"""A process that kills itself while it works on the store of the environment, as an operator's command."""

import asyncio
import signal
import sys
import textwrap

from tests.support.processes import ROOT

_PROGRAM = """
import asyncio, os, signal
from dialog_engine.config import load
from dialog_engine.config.store import StoreSettings
from dialog_engine.operators.encrypt import open_store
from dialog_engine.storage import postgres  # imported before the loop runs

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def main():
    async with open_store(load(StoreSettings)) as database:
"""


async def killed(source: str) -> None:
    """Run `source`, which uses `database`, in a process of its own, until it calls `die()`."""
    program = f"{_PROGRAM}{textwrap.indent(textwrap.dedent(source), ' ' * 8)}\nasyncio.run(main())"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, cwd=ROOT)
    assert await process.wait() == -signal.SIGKILL
