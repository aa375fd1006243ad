"""`python -m tests.pictures`: the dashboards of deploy/grafana as pictures in docs/pictures, without Grafana.

It starts the product as processes on PostgreSQL with two workers, a small load, and a Prometheus with the intervals and
the rules of deploy/. After a minute one worker is killed, and started again when its alert has fired. Then the panels
are drawn from the answers of Prometheus to their queries. Where there is Chromium, it takes a picture of the page of
Prometheus that lists what it scrapes.
"""

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import httpx2
import yaml

from tests.support.dashboards import dashboards, runnable
from tests.support.panels import picture
from tests.support.processes import ROOT
from tests.support.prometheus import Prometheus, Series, running_prometheus
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_until_blocking

DEPLOYED = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["global"]
FOLDER = ROOT / "docs" / "pictures"
QUESTIONS = {
    "What time is it in Tokyo and in Paris?": 2,
    "What is 17 * 23?": 1,
    "Run a slow job for 4 seconds": 4,
    "Call the failing tool": 1,
}
"""What is asked again and again, and by how many users."""
STEP_SECONDS = 5


def draw(folder: Path) -> None:
    """Run the product for four minutes, and write one picture for each dashboard whose panels ask Prometheus."""
    with ExitStack() as exits:
        stack = exits.enter_context(running_stack(workers=2, database="postgres", token_delay_ms=15))
        data = Path(exits.enter_context(tempfile.TemporaryDirectory()))
        jobs = {"dialog-engine": [stack.engine_port], "plugins-mcp": list(stack.workers)}
        intervals = {name: DEPLOYED[name] for name in ("scrape_interval", "evaluation_interval")}
        prometheus = exits.enter_context(running_prometheus(data, jobs, **intervals))
        began = time.time()
        with ExitStack() as users:
            for question, number in QUESTIONS.items():
                for _ in range(number):
                    users.enter_context(_asking(stack.url, question))
            _lose_a_worker(stack, prometheus, folder)
        began += 2 * STEP_SECONDS  # nothing is known of the time before the first two scrapes
        ask = partial(_between, prometheus, began, time.time())
        for name in ("users", "stream", "servers"):
            (folder / f"{name}.svg").write_bytes(picture(dashboards()[name], ask, began=began))


@contextmanager
def _asking(url: str, question: str) -> Generator[None]:
    """A user who asks again as soon as the question is answered, for as long as the block."""
    over = threading.Event()

    def ask() -> None:
        with httpx2.Client(base_url=url, timeout=120) as http:
            while not over.wait(1):
                http.post("/v1/chat", json={"message": question})

    user = threading.Thread(target=ask)
    user.start()
    try:
        yield
    finally:
        over.set()
        user.join()


def _lose_a_worker(stack: Stack, prometheus: Prometheus, folder: Path) -> None:
    port = next(iter(stack.workers))
    pause = threading.Event()
    pause.wait(60)
    stack.workers[port].kill()
    wait_until_blocking(lambda: "WorkerDown" in prometheus.firing(), 150, what="the alert")
    if chromium := shutil.which("chromium"):
        options = ["--headless", "--no-sandbox", "--window-size=1100,620", f"--screenshot={folder / 'prometheus.png'}"]
        subprocess.run([chromium, *options, f"{prometheus.url}/classic/targets"], check=True, timeout=60)
    stack.start_worker(port=port)
    pause.wait(60)


def _between(prometheus: Prometheus, start: float, end: float, expr: str) -> list[Series]:
    return prometheus.range(runnable(expr), start, end, STEP_SECONDS)


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    draw(FOLDER)
