"""Every query of the dashboards, run by a real Prometheus that scrapes the real services under a small load."""

import time
from collections.abc import Generator

import pytest

from tests.marks import exhaustive, promise
from tests.support import prometheus
from tests.support.dashboards import queries
from tests.support.prometheus import Prometheus, running_prometheus
from tests.support.stack import Stack, running_stack
from tests.support.waiting import wait_until_blocking

pytestmark = [
    pytest.mark.timeout(400),
    pytest.mark.skipif(prometheus.missing() is not None, reason=prometheus.missing() or ""),
    exhaustive("needs Prometheus and real processes"),
]

QUESTIONS = ("What time is it in Tokyo and in Paris?", "What is 17 * 23?", "Call the failing tool", "hello")


@pytest.fixture(scope="module")
def stack() -> Generator[Stack]:
    with running_stack(workers=2, database="postgres", quick=True) as stack:
        yield stack


@pytest.fixture(scope="module")
def scraping(stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Generator[Prometheus]:
    jobs = {"dialog-engine": [stack.engine_port], "plugins-mcp": list(stack.workers)}
    with running_prometheus(tmp_path_factory.mktemp("prometheus"), jobs, scrape_interval="5s") as server:
        yield server


def empty_panels(server: Prometheus) -> set[str]:
    """Queries without an answer, or with nothing but NaN."""
    return {
        f"{query.dashboard}: {query.panel}: {query.expr}"
        for query in queries()
        if query.source == "prometheus"
        and query.dashboard != "resources"  # that of the exporters: test_notifications.py
        and all(sample["value"][1] == "NaN" for sample in server.query(query.runnable))
    }


@promise("every panel of the dashboards has data under load", only_in_test_all="needs Prometheus")
def test_every_panel_shows_something_under_a_small_load(stack: Stack, scraping: Prometheus) -> None:
    def asked() -> bool:
        for question in QUESTIONS:
            stack.ask(question)
        assert stack.http.get("/v1/turns/no-such-turn").status_code == 404
        return not empty_panels(scraping)

    ends_at = time.monotonic() + 120
    while not asked() and time.monotonic() < ends_at:
        pass
    assert empty_panels(scraping) == set()
    assert scraping.rule_errors() == []


def test_when_all_workers_are_killed_the_alert_fires_and_the_panel_shows_it(stack: Stack, scraping: Prometheus) -> None:
    for worker in list(stack.workers.values()):
        worker.kill()
        stack.bury(worker)
    stack.workers.clear()

    wait_until_blocking(lambda: {"NoWorker", "WorkerDown"} <= scraping.firing(), 180, what="the alerts of lost workers")
    [panel] = [query for query in queries() if query.panel == "Workers" and query.dashboard == "stream"]
    assert [sample["value"][1] for sample in scraping.query(panel.runnable)] == ["0"]
