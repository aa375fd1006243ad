"""Runs an idempotent script many times in one round trip."""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from plugins_contract.ledger.scripts import Arg, Script

Command = tuple[Sequence[str], Sequence[Arg]]
"""Keys and arguments of a script."""


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
