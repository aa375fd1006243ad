"""The console script `plugins-mcp`: the worker, and commands for operators."""

import asyncio
import logging
import signal
import sys
from typing import TYPE_CHECKING

from plugins_mcp.config import Settings, load_settings
from plugins_mcp.errors import PluginsMcpError
from plugins_mcp.operators.arguments import Work, read_arguments
from plugins_mcp.operators.program import run

if TYPE_CHECKING:
    from plugins_mcp.leases import LeaseTimes

LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def main() -> None:
    """Do what the command line says; without a command, work."""
    match read_arguments(sys.argv[1:]):
        case Work():
            work()
        case command:
            sys.exit(run(command))


def work() -> None:
    """Consume until SIGTERM or SIGINT, then drain. Exits with 2 when a setting is wrong."""
    from plugins_mcp.mcp import TALKATIVE_LOGGERS  # noqa: PLC0415 -- a second of imports that no command needs

    try:
        settings = load_settings()
        logging.basicConfig(level=settings.log_level, format=LOG_FORMAT)
        for chatty in TALKATIVE_LOGGERS:
            logging.getLogger(chatty).setLevel(logging.WARNING)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(serve(settings))
    except PluginsMcpError as error:
        sys.stderr.write(f"plugins-mcp cannot start:\n{error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"plugins-mcp cannot start: {error} (HEALTH_HOST, HEALTH_PORT)\n")
        sys.exit(1)


async def serve(settings: Settings, times: "LeaseTimes | None" = None) -> None:
    """Consume until SIGTERM or SIGINT, then drain. Raises what `run_worker` raises."""
    from plugins_mcp.wiring import run_worker  # noqa: PLC0415 -- see above

    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopping.set)
    await run_worker(settings, stopping, times)


def _loop_factory() -> "type[asyncio.AbstractEventLoop] | None":
    """uvloop where there is one."""
    try:
        import uvloop  # noqa: PLC0415 -- not there on every platform
    except ImportError:
        return None
    return uvloop.Loop
