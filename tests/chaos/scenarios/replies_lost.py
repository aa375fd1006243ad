"""One reply of Redis in a hundred is lost: to everybody, of every command, and its connection with it.

Calls of every kind: quick and slow, of either class, of turns that are stopped before or after they began, and of a
server that only one of the workers has.
"""

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx2

from plugins_contract.keys import Keys
from tests.chaos.behind_proxies import OF_EVERY_CALL
from tests.chaos.cluster import Cluster
from tests.chaos.faults import Faults
from tests.chaos.history import History
from tests.chaos.load import Work
from tests.chaos.report import Report, Size
from tests.chaos.tools import RARE, SERVER, mcp_config
from tests.chaos.trial import Trial, engines_on, trial
from tests.support.store import Kind

STORES: Sequence[Kind] = ("postgres", "sqlite")
FAULTS = Faults(lose_share=0.01, lose_first_of_each=True)
LOST_DELIVERY_SECONDS = 2.5
"""Shorter than the lease of these workers: its consumer finds a lost delivery itself, before a sweep takes it over."""
CALLS = {Size.SHORT: 300, Size.FULL: 10_000}
WORK = Work(calls_per_turn=6, open_calls=48, kind="with rare", shortest_ms=0, longest_ms=1_500)
PROGRAM = (sys.executable, "-m", "tests.chaos.engine", "--no-pools")
"""Engines whose directory of pools is old: the worker that has not the server passes a call on."""
STOP_SECONDS = 1.5
"""The longest pause between two stops."""


def run(size: Size, folder: Path, *, store: Kind = "postgres") -> Report:
    options: dict[str, Any] = {"quick": True, "proxied": True, "prepare": _add_worker, "calls": CALLS[size]}
    with trial(folder, WORK, workers=1, program=PROGRAM, **options, **engines_on(store)) as under_fire:
        assert under_fire.proxies
        with under_fire.proxies.engine.broken(FAULTS), under_fire.proxies.workers.broken(FAULTS):
            while not under_fire.load.begun:
                under_fire.load.wait(random.uniform(0, STOP_SECONDS))
                _stop_one(under_fire)
            history = under_fire.judge()
        _judge_deliveries(under_fire, history)
        commands, lost = under_fire.proxies.counted()
        under_fire.figures |= {"operations": sum(commands.values()), "turns stopped": len(under_fire.stopped)}
        under_fire.must_have_struck({"turns stopped": len(under_fire.stopped), "replies lost": sum(lost.values())})
        scripts = {name.upper(): lost.pop(name.upper(), 0) for name in OF_EVERY_CALL}
        under_fire.must_have_struck({f"replies of {name} lost": times for name, times in scripts.items()})
        rest = ", ".join(f"{name} {times}" for name, times in sorted(lost.items()))
        under_fire.figures |= {"replies lost of the rest": rest}
        return under_fire.report("replies_lost")


def _add_worker(cluster: Cluster) -> None:
    config = cluster.folder / "mcp-with-rare.json"
    config.write_text(json.dumps(mcp_config(SERVER, RARE)))
    cluster.worker_env = {**cluster.worker_env, "MCP_CONFIG": str(config)}
    cluster.start_worker()
    for port in cluster.running_engines:
        cluster.wait_for_tools_at(port, RARE)


def _stop_one(under_fire: Trial) -> None:
    """Stop the turn that was begun last, or one of those before it."""
    if accepted := [*under_fire.load.accepted.items()][-4:]:
        turn_id, port = random.choice(accepted)
        under_fire.stopped.add(turn_id)
        httpx2.post(f"http://127.0.0.1:{port}/v1/turns/{turn_id}/cancel", timeout=30)


def _judge_deliveries(under_fire: Trial, history: History) -> None:
    """No request was put on the stream twice, and none was delivered without being begun."""
    rows = under_fire.cluster.store.rows(f"SELECT correlation_id FROM tool_calls WHERE name LIKE '{RARE}%'")  # noqa: S608
    rare = {call for (call,) in rows}
    # One worker passes them on to the other, and both live.
    under_fire.findings = [each for each in under_fire.findings if each.rule != "lease" or each.call not in rare]
    unbegun = {call: ms / 1000 for call, ms in under_fire.observer.observations.unbegun.items() if call not in rare}
    for call, seconds in unbegun.items():
        what = f"a call was delivered and not begun for more than {LOST_DELIVERY_SECONDS:g} s"
        under_fire.expect(seconds <= LOST_DELIVERY_SECONDS, "delivery", what, call)
    keys = Keys()
    with under_fire.cluster.client() as redis:
        added = redis.xinfo_stream(keys.requests)["entries-added"]
        entries = sum(bool(redis.hget(keys.call(call), "entry")) for call in history.calls)
    what = f"{added} requests were put on the stream for {entries} calls"
    under_fire.expect(added == entries, "delivery", what)
    under_fire.figures["oldest delivery that was not begun, s"] = max(unbegun.values(), default=0.0)
