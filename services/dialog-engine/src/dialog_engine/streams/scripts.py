"""The Lua files of this package, loaded once and run by hash."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from plugins_contract.ledger.scripts import Arg, AsyncCommands, Script, script


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
