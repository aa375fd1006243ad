"""Looking for a text where it must not be: in every key of a Redis, and in every file of a folder."""

from contextlib import suppress
from pathlib import Path
from typing import Any

from redis.exceptions import ResponseError


async def keys_with(redis: Any, text: str) -> list[str]:
    found: list[str] = []
    async for key in redis.scan_iter():
        match await redis.type(key):
            case b"stream":
                value: Any = [await redis.xrange(key)]
                with suppress(ResponseError):  # it may have gone meanwhile
                    value.append(await redis.xinfo_stream(key, full=True))
            case b"hash":
                value = await redis.hgetall(key)
            case b"set":
                value = await redis.smembers(key)
            case b"zset":
                value = await redis.zrange(key, 0, -1)
            case _:
                value = await redis.get(key)
        if text in repr(value):
            found.append(key.decode())
    return found


def files_with(folder: Path, text: str) -> list[str]:
    return [file.name for file in folder.iterdir() if file.is_file() and text.encode() in file.read_bytes()]
