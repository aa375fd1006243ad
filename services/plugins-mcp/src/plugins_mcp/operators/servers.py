"""The commands `plugins-mcp servers` and `plugins-mcp check`: MCP servers of running workers, and those of a file."""

import asyncio
import json
import os
import sys
from dataclasses import replace
from typing import Any

import msgspec

from plugins_contract.catalog import HEARTBEAT_STALE_MS, ServerHeartbeat
from plugins_contract.keys import Keys
from plugins_contract.messages import NOT_READABLE
from plugins_mcp.mcp import McpServers, read_servers_file
from plugins_mcp.operators.arguments import Check, ShowServers
from plugins_mcp.operators.display import plain
from plugins_mcp.operators.exit_codes import DONE, NOT_DONE

HEAD = ("SERVER", "WORKER", "STATE", "SESSIONS", "CHILDREN", "NEXT TRY", "ERROR")


async def show(redis: Any, keys: Keys, command: ShowServers) -> int:
    """Print each server at each running worker. Returns 1 when there is none. Raises `RedisUnavailable`.

    `redis` is a client of redis-py, which types its commands only partly.
    """
    seconds, micros = await redis.time()
    now = seconds * 1000 + micros // 1000
    rows: list[tuple[str, ...]] = [HEAD]
    for name in sorted(await redis.smembers(keys.catalog)):
        server = name.decode(errors="backslashreplace")
        for field, value in sorted((await redis.hgetall(keys.catalog_of(server))).items()):
            beat = _heartbeat(value) if field.startswith(b"worker:") else None
            if beat is None or now - beat.at > HEARTBEAT_STALE_MS:
                continue
            worker = field.removeprefix(b"worker:").decode(errors="backslashreplace")
            if command.json:
                print(json.dumps({"server": server, "worker": worker} | msgspec.to_builtins(beat)))  # noqa: T201
            wait = "" if beat.retry_at is None else f"{max(0, beat.retry_at - now) / 1000:.0f} s"
            rows.append((server, worker, beat.state, str(beat.sessions), str(beat.children), wait, beat.error or ""))
    if len(rows) == 1:
        sys.stderr.write("No worker is running.\n")
        return NOT_DONE
    if not command.json:
        print(_table(rows))  # noqa: T201
    return DONE


async def check(command: Check) -> int:
    """Connect to every server of a file and report what it offers. Returns 1 when one cannot be used.

    Raises:
        ServersFileError: the file as a whole cannot be used.
    """
    configured = read_servers_file(command.file, os.environ)
    for warning in configured.warnings:
        sys.stderr.write(f"{plain(warning)}\n")
    # What trusted servers offer would have to be compared with the pins in Redis first.
    untrusted = [replace(spec, options=replace(spec.options, trust=False)) for spec in configured.servers]
    servers = McpServers(untrusted, configured.broken)
    running = asyncio.create_task(servers.run())
    try:
        await servers.attempted()  # each has its connectTimeoutMs
    finally:
        servers.stop()
        await running
    disabled = {each.name for each in configured.broken if each.disabled}
    failed = False
    for name, health in sorted(servers.health().items()):
        server = servers.get(name)
        catalog = server.listed if server is not None else None
        if catalog is None:
            failed |= name not in disabled
            word = "disabled" if name in disabled else "FAILED"
            print(f"{word:8}  {plain(name)}: {plain(health.error or '')}")  # noqa: T201
            continue
        print(f"{'ok':8}  {plain(name)}: {len(catalog.tools)} tools")  # noqa: T201
        for each in catalog.quarantined:
            print(f"          {plain(each.tool)} is not offered: {plain(each.reason)}")  # noqa: T201
    return NOT_DONE if failed else DONE


def _heartbeat(value: bytes) -> ServerHeartbeat | None:
    try:
        return msgspec.json.decode(value, type=ServerHeartbeat)
    except NOT_READABLE:
        return None


def _table(rows: list[tuple[str, ...]]) -> str:
    rows = [tuple(map(plain, row)) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)
