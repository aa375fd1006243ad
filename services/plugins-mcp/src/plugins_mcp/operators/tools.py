"""The commands `plugins-mcp tools`: shows and accepts tools of trusted servers that are held back."""

import difflib
import json
import sys
from typing import Any

import msgspec

from plugins_contract.pins import PinnedTool, Pins, PinStore
from plugins_mcp.operators.arguments import AcceptTools, DiffTools
from plugins_mcp.operators.display import plain
from plugins_mcp.operators.exit_codes import DONE, NOT_DONE


async def diff(store: PinStore, command: DiffTools) -> int:
    """Print what is held back. Returns 1 when nothing is."""
    found = False
    for server in [command.server] if command.server else await store.servers():
        pins = await store.read(server)
        for name in sorted(pins.held):
            found = True
            print(_as_json(server, name, pins) if command.json else _difference(server, name, pins))  # noqa: T201
    if not found:
        sys.stderr.write("No tool is held back.\n")
    return DONE if found else NOT_DONE


async def accept(store: PinStore, command: AcceptTools) -> int:
    """Accept tools, exactly as they are printed here. Returns 1 when one of them is not held, or nothing was done.

    Raises:
        EOFError: a confirmation is needed, and standard input ended.
    """
    pins = await store.read(command.server)
    names = command.tools or tuple(sorted(pins.held))
    held = {name: pins.held[name] for name in names if name in pins.held}
    for name in held:
        print(_difference(command.server, name, pins))  # noqa: T201
    if missing := [name for name in names if name not in held]:
        sys.stderr.write(f"Not held back: {', '.join(map(plain, missing))}.\n")
    if not held:
        sys.stderr.write("Nothing was done.\n")
        return NOT_DONE
    if not command.yes and not _confirmed(f"Accept {len(held)} tools of this server?"):
        sys.stderr.write("Nothing was done.\n")
        return NOT_DONE
    # Later than what it replaces, also when the clock of Redis was set back: workers keep the newest.
    at_ms = max(await store.now_ms(), *(at + 1 for at in pins.at_ms.values()), 0)
    await store.accept(command.server, held, at_ms)
    return NOT_DONE if missing else DONE


def _confirmed(question: str) -> bool:
    return input(f"{question} [y/N] ").lower() in ("y", "yes")


def _difference(server: str, name: str, pins: Pins) -> str:
    before, after = pins.accepted.get(name), pins.held[name]
    lines = list(difflib.unified_diff(_lines(before), _lines(after), "accepted", "now", lineterm="", n=2))
    what = "changed" if before else "new"
    return "\n".join([f"{plain(server)} / {plain(name)}: {what}", *(f"  {plain(line)}" for line in lines)])


def _lines(tool: PinnedTool | None) -> list[str]:
    # ASCII, so that characters which look alike or are invisible show as what they are.
    return json.dumps(msgspec.to_builtins(tool), indent=1, sort_keys=True).split("\n") if tool else []


def _as_json(server: str, name: str, pins: Pins) -> str:
    line: dict[str, Any] = {"server": server, "tool": name}
    line |= {"accepted": msgspec.to_builtins(pins.accepted.get(name)), "now": msgspec.to_builtins(pins.held[name])}
    return json.dumps(line)
