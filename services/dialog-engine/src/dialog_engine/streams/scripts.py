"""The Lua files of this package, loaded once and run by hash."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from plugins_contract.ledger.scripts import Arg, AsyncCommands, Script, script

Command = tuple[Sequence[str], Sequence[Arg]]
"""Keys and arguments of a script."""


@cache
def load(name: str) -> Script:
    """The script `lua/<name>.lua`, with the shared part in front."""
    folder = files(__package__ or __name__) / "lua"
    return script(name, (folder / "common.lua").read_text() + (folder / f"{name}.lua").read_text())


async def run(redis: AsyncCommands, name: str, keys: Sequence[str], args: Sequence[Arg]) -> list[Any]:
    """Run a script; a server that does not know it yet is sent the text."""
    loaded = load(name)
    try:
        return await redis.execute_command("EVALSHA", loaded.sha, len(keys), *keys, *args)
    except NoScriptError:
        return await redis.execute_command("EVAL", loaded.text, len(keys), *keys, *args)


async def run_each(redis: Redis, script: Script, commands: Sequence[Command]) -> list[Any]:
    """Run an idempotent script once for each of `commands`, in one round trip: the answers, or errors in their place.

    Raises:
        RedisError, OSError: no answer came.
    """
    answers = await _answers(redis, script, commands)
    while any(isinstance(answer, NoScriptError) for answer in answers):
        await redis.execute_command("SCRIPT", "LOAD", script.text)
        answers = await _answers(redis, script, commands)
    return answers


async def _answers(redis: Redis, script: Script, commands: Sequence[Command]) -> list[Any]:
    calls = [("EVALSHA", script.sha, len(keys), *keys, *args) for keys, args in commands]
    if len(calls) == 1:
        # Most often; a pipeline of one takes twice the processor time, and a user's first word waits for it.
        try:
            return [await redis.execute_command(*calls[0])]
        except ResponseError as error:
            return [error]
    pipeline = redis.pipeline(transaction=False)
    for call in calls:
        pipeline.execute_command(*call)
    return await pipeline.execute(raise_on_error=False)
