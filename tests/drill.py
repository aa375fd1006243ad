"""`python -m tests.drill [part …]`: what breaks in an installation, and what an operator sees (docs/drill.md).

It starts the product as processes on PostgreSQL with two workers, a small load, and a Prometheus with the intervals and
the rules of deploy/. Then it breaks one part after the other, waits for the alert, prints the panels and the commands
that the runbook names, repairs the part as the runbook says, and waits for the end of the alert.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx2
import yaml

from tests.support.dashboards import queries
from tests.support.processes import ROOT
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.stack import BIN, Stack, running_stack
from tests.support.waiting import wait_until_blocking

DEPLOYED = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"]
LONGEST_SECONDS = 480.0
QUICK_QUESTION = "What time is it in Tokyo?"
DEMO_QUESTION = "What is 17 * 23?"


class Load:
    """Users who ask a question again as soon as it is answered; how their turns and calls ended."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.ended: Counter[str] = Counter()

    @contextmanager
    def asking(self, question: str, users: int = 1) -> Generator[None]:
        """So many users for as long as the block; it ends when their last turns do."""
        over = threading.Event()
        threads = [threading.Thread(target=self._ask, args=(question, over)) for _ in range(users)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            over.set()
            for thread in threads:
                thread.join()

    def _ask(self, question: str, over: threading.Event) -> None:
        with httpx2.Client(base_url=self._url, timeout=120) as http:
            while not over.wait(1):
                try:
                    with http.stream("POST", "/v1/chat", json={"message": question}) as response:
                        if response.status_code != 200:
                            self.ended[f"HTTP {response.status_code}"] += 1
                            continue
                        text = "".join(response.iter_text())
                except httpx2.HTTPError as error:
                    self.ended[type(error).__name__] += 1
                    continue
                for status in ("succeeded", "failed", "timeout", "unknown", "cancelled"):
                    self.ended[f"call {status}"] += text.count(f'"status":"{status}"')
                self.ended["turn answered" if '"reason":"stop"' in text else "turn ended with an error"] += 1


class Drill:
    """One part after the other, with a clock that starts when something is broken."""

    def __init__(self, stack: Stack, prometheus: Prometheus, load: Load) -> None:
        self.stack = stack
        self.prometheus = prometheus
        self.load = load
        self._began = time.monotonic()
        self._before: set[str] = set()

    def say(self, text: str) -> None:
        """A line with the seconds since the part was broken."""
        print(f"[{time.monotonic() - self._began:6.1f}] {text}", flush=True)

    def broken(self, what: str) -> None:
        """Start the clock."""
        self._began = time.monotonic()
        self.load.ended.clear()
        self.say(what)

    def until_fires(self, *alerts: str) -> None:
        """Wait for these alerts; every other one that fires meanwhile is said too."""
        self._wait(lambda firing: set(alerts) <= firing, f"{' and '.join(alerts)} to fire")

    def until_ended(self, *alerts: str) -> None:
        """Wait for the end of these alerts; say which others still fire, and how the load fared."""
        self._wait(lambda firing: firing.isdisjoint(alerts), f"the end of {' and '.join(alerts)}")
        self.say(f"still firing: {sorted(self._before) or 'none'}; load: {dict(+self.load.ended)}")

    def watch(self, seconds: float) -> None:
        """Report alerts for that long after the part was broken."""
        self._wait(lambda _: time.monotonic() - self._began > seconds, "that time")
        self.say(f"still firing: {sorted(self._before) or 'none'}; load: {dict(+self.load.ended)}")

    def _wait(self, enough: Callable[[set[str]], bool], what: str) -> None:
        try:
            wait_until_blocking(lambda: enough(self._firing()), LONGEST_SECONDS, what=what)
        except TimeoutError:
            self.say(f"MISSED: {what}, within {LONGEST_SECONDS:.0f} s")

    def _firing(self) -> set[str]:
        """The alerts that fire; those that are new, and those that have ended, are said."""
        firing = self.prometheus.firing()
        for alert in sorted(firing - self._before):
            self.say(f"ALERT {alert} fires")
        for alert in sorted(self._before - firing):
            self.say(f"alert {alert} has ended")
        self._before = firing
        return firing

    def panels(self, *names: str) -> None:
        """What these panels show now."""
        for query in queries():
            if query.panel in names and query.source == "prometheus":
                samples = [
                    f"{_labels(sample['metric'])}{float(sample['value'][1]):.3g}"
                    for sample in self.prometheus.query(query.runnable)
                ]
                self.say(f"panel {query.dashboard}/{query.panel}: {', '.join(samples) or 'no data'}")

    def readyz(self, port: int) -> None:
        """The answer of /readyz."""
        answer = httpx2.get(f"http://127.0.0.1:{port}/readyz", timeout=20)
        self.say(f"/readyz: {answer.status_code} {answer.text}")

    def command(self, *argv: str) -> str:
        """Run a command of the runbook, print what it prints, and return it."""
        program = [str(BIN / argv[0]) if argv[0] == "plugins-mcp" else argv[0], *argv[1:]]
        done = subprocess.run(
            program,
            env={**os.environ, "REDIS_URL": self.stack.redis.url},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        self.say(f"$ {' '.join(argv)}\n{(done.stdout + done.stderr).rstrip()}")
        return done.stdout

    def redis(self, *argv: str) -> str:
        """Ask Redis."""
        return self.command("redis-cli", "-p", str(self.stack.redis.port), *argv)

    def last_log(self, output: str, lines: int = 3) -> None:
        """The newest warnings and errors of a log."""
        found = [line for line in output.splitlines() if " WARNING " in line or " ERROR " in line]
        self.say("log:\n" + "\n".join(found[-lines:]))


def _labels(metric: dict[str, str]) -> str:
    shown = {name: value for name, value in metric.items() if name not in ("__name__", "job", "stream", "group")}
    return " ".join(shown.values()) + " " if shown else ""


def workers_killed(drill: Drill) -> None:
    """All workers are killed."""
    stack = drill.stack
    ports = list(stack.workers)
    for port in ports:
        stack.workers[port].kill()
    drill.broken("both workers are killed")
    drill.until_fires("NoWorker")
    drill.panels("Workers", "Requests that wait", "Oldest waiting, oldest pending")
    drill.readyz(stack.engine_port)
    for port in ports:
        drill.stack.start_worker(port=port, wait=False)
    drill.say("Do: the workers are started again")
    drill.until_ended("NoWorker")


def server_hung(drill: Drill) -> None:
    """The demo MCP server is suspended: it accepts connections and answers nothing."""
    [*_, demo] = [part for part in drill.stack.parts if "examples.demo_server" in part.argv]
    with drill.load.asking(DEMO_QUESTION, users=3):
        demo.freeze()
        drill.broken("the MCP server `demo` hangs")
        drill.until_fires("McpServerBreakerOpen", "McpServerDown")
        drill.panels("Workers that can use the server", "Circuit breaker", "Calls that did not succeed, by code")
        drill.say(f"/v1/tools: {json.dumps(_state(drill.stack.tools()['demo']))}")
        drill.readyz(next(iter(drill.stack.workers)))
        demo.kill()
        drill.stack.start_demo()
        drill.say("Do: the server is restarted")
        drill.until_ended("McpServerBreakerOpen", "McpServerDown")


def _state(server: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in server.items() if name not in ("tools", "instructions")}


def redis_restarted(drill: Drill) -> None:
    """Redis is restarted at once, and then stopped until the alert fires."""
    redis = drill.stack.redis
    redis.stop()
    drill.broken("Redis is restarted at once")
    redis.start()
    drill.say("Redis is back")
    drill.watch(60)
    redis.stop()
    drill.broken("Redis is stopped")
    drill.until_fires("RedisDown")
    drill.panels("Redis answers", "Oldest request in the outbox", "Workers", "Requests in the outbox, calls held back")
    drill.readyz(drill.stack.engine_port)
    assert drill.stack.engine
    drill.last_log(drill.stack.engine.output())
    redis.start()
    drill.say("Do: Redis is started")
    drill.until_ended("RedisDown")


def postgresql_restarted(drill: Drill) -> None:
    """PostgreSQL is restarted at once, and then stopped until the alert fires."""
    postgres = drill.stack.postgres
    assert postgres
    assert drill.stack.engine
    drill.broken("PostgreSQL is restarted at once")
    postgres.restart()
    drill.say("PostgreSQL is back")
    drill.watch(60)
    postgres.stop()
    drill.broken("PostgreSQL is stopped")
    drill.until_fires("StoreDown")
    drill.panels("The store answers", "Renewals of engine leases")
    drill.readyz(drill.stack.engine_port)
    drill.last_log(drill.stack.engine.output())
    postgres.start()
    drill.say("Do: PostgreSQL is started")
    drill.until_ended("StoreDown")


def poison(drill: Drill) -> None:
    """Another program writes an entry to the stream that is no request."""
    drill.redis("XADD", "events.plugins", "*", "event", '{"eventType": "Nonsense", "n": 1}')
    drill.broken("an entry that is no request is on events.plugins")
    drill.until_fires("ProducerMistakes")
    drill.panels("Dead letters", "Consumers of the group, new dead letters")
    [letter] = drill.command("plugins-mcp", "dead", "list", "--json").splitlines()
    drill.command("plugins-mcp", "dead", "show", json.loads(letter)["id"])
    drill.command("plugins-mcp", "dead", "discard", json.loads(letter)["id"], "--yes")


def slow_tool(drill: Drill) -> None:
    """45 users call a tool that takes 25 seconds; two workers have 32 slots in all."""
    stack = drill.stack
    drill.broken("45 users call a tool of 25 seconds, again and again")
    with drill.load.asking("Run a slow job for 25 seconds", users=45):
        drill.until_fires("RequestsWait", "SlotsFull")
        drill.panels(
            "Slots that are taken",
            "Lag and pending of the group",
            "Oldest waiting, oldest pending",
            "Run time of the slowest tools, 95 %",
            "Calls that run, by worker",
        )
        drill.redis("XPENDING", "events.plugins", "plugins-workers")
        drill.say("Do: the workers get WORKER_CONCURRENCY=32 and are restarted one by one")
        stack.worker_env = {"WORKER_CONCURRENCY": "32"}
        for port, worker in list(stack.workers.items()):
            worker.stop(60)
            stack.start_worker(port=port)
            drill.say(f"worker {port} is restarted")
        drill.until_ended("RequestsWait", "SlotsFull")
        drill.panels("Slots that are taken", "Lag and pending of the group", "Oldest waiting, oldest pending")


PARTS: dict[str, Callable[[Drill], None]] = {
    part.__name__: part
    for part in (workers_killed, server_hung, redis_restarted, postgresql_restarted, poison, slow_tool)
}


def run(parts: Iterable[str]) -> None:
    """These parts, one after the other."""
    with (
        running_stack(
            workers=2, database="postgres", token_delay_ms=15, worker_env={"WORKER_CONCURRENCY": "16"}
        ) as stack,
        tempfile.TemporaryDirectory() as folder,
    ):
        jobs = {"dialog-engine": [stack.engine_port], "plugins-mcp": list(stack.workers)}
        intervals = {name: DEPLOYED[name] for name in ("scrape_interval", "evaluation_interval")}
        with running_prometheus(Path(folder), jobs, **intervals) as prometheus:
            load = Load(stack.url)
            drill = Drill(stack, prometheus, load)
            with load.asking(QUICK_QUESTION, users=2), load.asking(DEMO_QUESTION):
                drill.say(f"rules and intervals of deploy/: {intervals}")
                for name in parts:
                    print(f"\n=== {name}: {PARTS[name].__doc__}")
                    PARTS[name](drill)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m tests.drill", description=__doc__)
    parser.add_argument("parts", nargs="*", metavar="part", help=f"one or more of: {', '.join(PARTS)}")
    options = parser.parse_args()
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; there are: {', '.join(PARTS)}")
    with suppress(KeyboardInterrupt):
        run(options.parts or PARTS)
    sys.exit()
