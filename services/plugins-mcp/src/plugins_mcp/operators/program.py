"""Runs one command for operators: settings, a client, the command, an exit code."""

import asyncio
import os
import sys

from plugins_contract.connections import command_client, describe_outage, is_outage
from plugins_contract.dead_letters import DeadLetters
from plugins_contract.keys import Keys
from plugins_mcp.config import OperatorSettings, load_operator_settings
from plugins_mcp.errors import SettingsError
from plugins_mcp.operators.arguments import Discard, List, Requeue, Show
from plugins_mcp.operators.commands import NOT_DONE, WRONG, NotATerminalError, carry_out

UNREACHABLE = 3
INTERRUPTED = 130
ANSWER_SECONDS = 2.0
"""How long Redis may take for one answer: a person waits."""


def run(command: List | Show | Requeue | Discard) -> int:
    """Do it; the exit code. What goes wrong is said on standard error, in one line and without a traceback."""
    try:
        settings = load_operator_settings()
    except SettingsError as error:
        return _fail(f"cannot start:\n{error}", WRONG)
    try:
        return asyncio.run(_run(settings, command))
    except NotATerminalError:
        return _fail(
            "it would have to ask, and standard input is no terminal: add --yes, or look with --dry-run", WRONG
        )
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        # Whoever read our output has had enough; nothing may be written to it at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOT_DONE
    except Exception as error:
        if not is_outage(error):
            raise
        return _fail(f"Redis at {settings.redis_address}: {describe_outage(error)} (REDIS_URL)", UNREACHABLE)


async def _run(settings: OperatorSettings, command: List | Show | Requeue | Discard) -> int:
    redis = command_client(settings.redis_address, connections=1, timeout=ANSWER_SECONDS)
    try:
        return await carry_out(DeadLetters(redis, Keys(settings.redis_key_prefix)), command)
    finally:
        await redis.aclose()


def _fail(text: str, code: int) -> int:
    sys.stderr.write(f"plugins-mcp dead: {text}\n")
    return code
