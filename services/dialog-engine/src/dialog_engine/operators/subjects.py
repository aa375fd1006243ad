"""`dialog-engine subjects`: which subjects use most, now and over the last hour, at all engines together."""

import asyncio
import json
import time
from collections.abc import Generator
from typing import Any

from callstream_runtime.connections import command_client
from callstream_runtime.redis_errors import RedisUnavailable
from callstream_runtime.settings import digest_of_subject
from callstream_runtime.visible import visible
from dialog_engine.config.store import OperatorSettings
from dialog_engine.consumption.subjects import COUNTED, OPEN, Report, Use, added_up, first
from dialog_engine.errors import ConfigurationError
from plugins_contract.keys import Keys

REDIS_SECONDS = 2.0
NOBODY = "(not signed in)"
WIDTH = 40


def report(settings: OperatorSettings) -> Report:
    """What the engines have written into Redis.

    Raises:
        ConfigurationError: Redis cannot be asked.
    """
    return asyncio.run(_report(settings))


async def _report(settings: OperatorSettings) -> Report:
    redis: Any = command_client(settings.redis_address, connections=1, timeout=REDIS_SECONDS)
    try:
        return added_up(await redis.hgetall(Keys(settings.redis_key_prefix).subjects), time.time())
    except RedisUnavailable as error:
        text = f"Redis at {settings.redis_address}: {error}"
        raise ConfigurationError(f"{text}. Each engine has its own numbers at /operators/subjects") from None
    finally:
        await redis.aclose()


def as_text(found: Report, limit: int, by: str) -> Generator[str]:
    """A table for people."""
    yield f"{'subject':<{WIDTH}}  {'now':>16}  {'in the last hour':>42}"
    yield f"{'':<{WIDTH}}  {OPEN[0]:>8}{OPEN[1]:>8}  " + "".join(f"{kind:>11}" for kind in COUNTED)
    for use in first(found.uses, limit, by):
        name = visible(use.subject or NOBODY)
        short = name if len(name) <= WIDTH else name[: WIDTH - 1] + "…"
        yield f"{short:<{WIDTH}}  {use.now[0]:>8}{use.now[1]:>8}  " + "".join(f"{each:>11}" for each in use.hour)
    yield f"{len(found.uses)} subjects are known; {found.engines} engines have reported within 30 s."


def as_json(use: Use, settings: OperatorSettings) -> str:
    """A subject as one line of JSON; with the digest that stands for it in logs, where there is a key for that."""
    line = {"subject": use.subject} | dict(zip(OPEN, use.now, strict=True)) | dict(zip(COUNTED, use.hour, strict=True))
    if settings.request_keys_file:
        line["digest"] = digest_of_subject(settings.request_keys, use.subject)
    return json.dumps(line)
