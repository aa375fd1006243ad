"""Proxies in front of Redis: one for the engines of a stack, and one for its workers."""

import hashlib
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files

from plugins_contract import ledger
from plugins_contract.ledger.scripts import load
from tests.chaos.proxy import Proxy
from tests.support.stack import Stack

SCRIPTS = tuple(
    sorted(file.name.removesuffix(".lua") for file in files(ledger).iterdir() if file.name.endswith(".lua"))
)
"""All scripts of the ledger, and the parts that are put in front of them."""
OF_EVERY_CALL = ("enqueue", "start", "renew", "progress", "complete", "cancel", "pass")
"""Those that calls go through; the others are for what is lost, cannot be read or cannot be reached."""


@dataclass(frozen=True)
class Proxies:
    """The harness itself goes to Redis directly."""

    engine: Proxy
    workers: Proxy

    def counted(self) -> tuple[dict[str, int], dict[str, int]]:
        """The commands that went through both proxies, and the replies that were lost: by name, scripts by theirs."""
        names = {_sha(script): script.upper() for script in SCRIPTS}
        commands: dict[str, int] = {}
        lost: dict[str, int] = {}
        for counts in (self.engine.counts(), self.workers.counts()):
            for total, by_kind in ((commands, counts.by_kind), (lost, counts.lost)):
                for kind, number in by_kind.items():
                    word, _, sha = kind.partition(" ")
                    name = names.get(sha, word)
                    total[name] = total.get(name, 0) + number
        return commands, lost


def _sha(script: str) -> str:
    """The hash by which EVALSHA names the script."""
    return hashlib.sha1(load(script).encode(), usedforsecurity=False).hexdigest()


@contextmanager
def behind_proxies(stack: Stack) -> Generator[Proxies]:
    """What is started of this stack within the block reaches Redis through them."""
    with Proxy(stack.redis.port) as engine, Proxy(stack.redis.port, seed=2) as workers:
        stack.engine_env = {**stack.engine_env, "REDIS_URL": engine.url}
        stack.worker_env = {**stack.worker_env, "REDIS_URL": workers.url}
        yield Proxies(engine, workers)
