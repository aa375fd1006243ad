"""The console script `plugins-mcp`: the worker, and commands for operators."""

import asyncio
import gc
import logging
import signal
import sys
from typing import TYPE_CHECKING

from callstream_runtime.environment import hide_environment
from callstream_runtime.garbage import tune_gc
from plugins_mcp.config import Settings, load_settings
from plugins_mcp.errors import PluginsMcpError
from plugins_mcp.operators.arguments import Work, read_arguments
from plugins_mcp.operators.commands import run

if TYPE_CHECKING:
    from plugins_mcp.leases import LeaseTimes
    from plugins_mcp.mcp import ConnectionPolicy

log = logging.getLogger(__name__)


def main() -> None:
    """Run the command of the command line; without one, the worker."""
    match read_arguments(sys.argv[1:]):
        case Work():
            work()
        case command:
            sys.exit(run(command))


def work() -> None:
    """Run the worker until SIGTERM, SIGINT or SIGHUP, then drain. Exits with 2 when a setting is wrong."""
    hide_environment()  # from the MCP servers that are started here
    gc.disable()  # while modules are imported, which makes many objects and hardly any garbage
    from callstream_runtime.event_loop import EventLoop  # noqa: PLC0415 -- these take a second to import, and no command
    from callstream_runtime.logs import set_up_logging  # noqa: PLC0415
    from callstream_runtime.settings_sources import readable_by_all  # noqa: PLC0415
    from callstream_runtime.tracing import TracingError, exported_spans  # noqa: PLC0415 -- needs them
    from plugins_mcp.mcp import NOISY_LOGGERS  # noqa: PLC0415

    try:
        settings = load_settings()
        set_up_logging(settings.log_level, settings.log_format, subject_as=settings.subject_as_logged)
        for warning in readable_by_all(settings):
            log.warning("%s", warning)
        for name in NOISY_LOGGERS:
            logging.getLogger(name).setLevel(logging.WARNING)
        with exported_spans("plugins-mcp"), asyncio.Runner(loop_factory=EventLoop) as runner:
            runner.run(serve(settings))
    except (PluginsMcpError, TracingError) as error:
        sys.stderr.write(f"plugins-mcp cannot start:\n{error}\n")
        sys.exit(2)
    except OSError as error:
        sys.stderr.write(f"plugins-mcp cannot start: {error} (HEALTH_HOST, HEALTH_PORT)\n")
        sys.exit(1)


async def serve(
    settings: Settings, times: "LeaseTimes | None" = None, policy: "ConnectionPolicy | None" = None
) -> None:
    """Run the worker until SIGTERM, SIGINT or SIGHUP, then drain. Raises the errors of `run_worker`."""
    from plugins_mcp.wiring import run_worker  # noqa: PLC0415 -- see above

    tune_gc()
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, stopping.set)
    await run_worker(settings, stopping, times, policy)
