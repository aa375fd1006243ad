"""Runs the commands for operators. Results go to standard output, everything else to standard error."""

import asyncio
import logging
import os
import sys
from typing import TypeAlias

from callstream_runtime.connections import command_client
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.settings import RedisSettings
from plugins_contract.dead_letters import DeadLetters
from plugins_contract.keys import Keys
from plugins_contract.pins import PinStore
from plugins_mcp.config import load_operator_settings
from plugins_mcp.errors import PluginsMcpError, SettingsError
from plugins_mcp.operators import servers, tools
from plugins_mcp.operators.arguments import AcceptTools, Check, DiffTools, Discard, List, Requeue, Show, ShowServers
from plugins_mcp.operators.dead import NotATerminalError, carry_out
from plugins_mcp.operators.exit_codes import INTERRUPTED, NOT_DONE, UNREACHABLE, WRONG

RedisCommand: TypeAlias = List | Show | Requeue | Discard | DiffTools | AcceptTools | ShowServers
OperatorCommand: TypeAlias = RedisCommand | Check

REDIS_TIMEOUT_SECONDS = 2.0
"""The timeout of one command of Redis: a person is waiting."""


def run(command: OperatorCommand) -> int:
    """Run one command; returns its exit code. An error is one line on standard error, without a traceback."""
    match command:
        case DiffTools() | AcceptTools():
            group = "tools"
        case ShowServers():
            group = "servers"
        case Check():
            return _check(command)
        case _:
            group = "dead"
    try:
        settings = load_operator_settings()
    except SettingsError as error:
        return _fail(group, f"cannot start:\n{error}", WRONG)
    try:
        return asyncio.run(_connect_and_run(settings, command))
    except (NotATerminalError, EOFError):
        return _fail(
            group,
            "a confirmation is needed and standard input is not a terminal: add --yes, or check with --dry-run",
            WRONG,
        )
    except KeyboardInterrupt:
        return _fail(group, "interrupted", INTERRUPTED)
    except BrokenPipeError:
        # The reader closed the pipe. Python must not flush to it at exit either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE
    except RedisUnavailable as error:
        return _fail(group, f"Redis at {settings.redis_address}: {error} (REDIS_URL)", UNREACHABLE)


def _check(command: Check) -> int:
    """Needs neither settings nor Redis."""
    logging.getLogger("plugins_mcp").addHandler(logging.NullHandler())  # what is wrong with a server is in the result
    try:
        return asyncio.run(servers.check(command))
    except PluginsMcpError as error:
        return _fail("check", str(error), WRONG)
    except KeyboardInterrupt:
        return _fail("check", "interrupted", INTERRUPTED)


async def _connect_and_run(settings: RedisSettings, command: RedisCommand) -> int:
    redis = command_client(settings.redis_address, connections=1, timeout=REDIS_TIMEOUT_SECONDS)
    keys = Keys(settings.redis_key_prefix)
    try:
        match command:
            case DiffTools():
                return await tools.diff(PinStore(redis, keys, settings.request_keys), command)
            case ShowServers():
                return await servers.show(redis, keys, command)
            case AcceptTools():
                return await tools.accept(PinStore(redis, keys, settings.request_keys), command)
            case _:
                return await carry_out(DeadLetters(redis, keys, settings.request_keys, cipher=settings.cipher), command)
    finally:
        await redis.aclose()


def _fail(group: str, text: str, code: int) -> int:
    sys.stderr.write(f"plugins-mcp {group}: {text}\n")
    return code
