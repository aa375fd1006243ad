"""What operators see of one call through both services: log lines, one trace, metrics, and `dialog-engine trace`."""

import json
import re
import threading
from collections.abc import Generator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families,  # pyright: ignore[reportUnknownVariableType]  # it has no types
)

from dialog_engine.operators import commands
from tests.marks import promise
from tests.support.stack import Said, Stack, running_stack
from tests.support.waiting import wait_until_blocking

QUESTION = "What is 17230918 * 231109 + 4?"
TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
ENGINE_TRAIL = ["tool call requested", "tool call enqueued", "tool call finished"]
WORKER_TRAIL = ["tool call started", "tool call finished"]


@dataclass
class Collector:
    """An OTLP receiver: the spans that were exported to it, each with the name of its service."""

    spans: list[tuple[str, Any]] = field(default_factory=list[tuple[str, Any]])
    url: str = ""

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            names = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.spans += [(names["service.name"], span) for scope in resource.scope_spans for span in scope.spans]

    def named(self, name: str) -> list[Any]:
        """The spans of that name in the trace of the turn."""
        return [span for _, span in self.spans if span.name == name and span.trace_id.hex() == TRACE]


@pytest.fixture(scope="module")
def collector() -> Generator[Collector]:
    found = Collector()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            found.take(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 -- the name of the base class
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        found.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield found
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def stack(collector: Collector) -> Generator[Stack]:
    env = {"LOG_FORMAT": "json", "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
    with running_stack(engine_env=env, worker_env=env, forked=True) as stack:
        yield stack


@pytest.fixture(scope="module")
def said(stack: Stack) -> Said:
    """One turn with one call, whose client is a part of a trace."""
    stack.http.headers["traceparent"] = f"00-{TRACE}-00f067aa0ba902b7-01"
    said = stack.ask(QUESTION)
    del stack.http.headers["traceparent"]
    assert said.quick_statuses("demo__calculate") == [["pending", "queued", "succeeded"]]
    return said


def output(stack: Stack, service: str) -> str:
    """What a service has logged so far."""
    part = stack.engine if service == "engine" else next(iter(stack.workers.values()))
    assert part is not None
    return part.output()


def lines(stack: Stack, service: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output(stack, service).splitlines()]


def trail(stack: Stack, service: str, call: str) -> list[dict[str, Any]]:
    """The lines about a call, from its beginning to its end."""

    def found() -> list[dict[str, Any]]:
        about = [line for line in lines(stack, service) if line.get("correlationId") == call]
        return about if about and about[-1]["message"] == "tool call finished" else []

    return wait_until_blocking(found, 20, what=f"the trail of the call in the {service}'s log")


def call_of(said: Said) -> str:
    return str(said.steps("demo__calculate")[0]["correlationId"])


@promise("a call leaves its trail in both logs under the same ids, without arguments and texts")
def test_a_call_leaves_its_trail_in_both_logs_under_the_same_ids(stack: Stack, said: Said) -> None:
    engine, worker = (trail(stack, service, call_of(said)) for service in ("engine", "worker"))
    assert [line["message"] for line in engine] == ENGINE_TRAIL
    assert [line["message"] for line in worker] == WORKER_TRAIL
    started = said.events[0].data
    for line in (*engine, *worker):
        assert line["level"] == "INFO"
        assert (line["turnId"], line["sessionId"]) == (started["turnId"], started["sessionId"])
        assert line["traceId"] == TRACE
        assert line["subject"] == "local"
    for finished in (engine[-1], worker[-1]):
        assert (finished["server"], finished["tool"], finished["state"]) == ("demo", "calculate", "succeeded")
    assert engine[-1]["totalMs"] >= worker[-1]["runMs"] >= 0


@promise("a call leaves its trail in both logs under the same ids, without arguments and texts")
def test_no_argument_and_no_text_is_logged(stack: Stack, said: Said) -> None:
    for service in ("engine", "worker"):
        trail(stack, service, call_of(said))
        log = re.sub(
            r'"timestamp":"[^"]*"', "", output(stack, service)
        )  # digits of a time may be those of the question
        for secret in ("17230918", "231109", "What is", str(17230918 * 231109 + 4)):
            assert secret not in log


@promise("a turn is one trace over both services")
def test_a_turn_is_one_trace_over_both_services(collector: Collector, said: Said) -> None:
    names = ("POST /v1/chat", "chat demo-scripted", "send events.plugins", "process events.plugins")
    wait_until_blocking(lambda: all(collector.named(name) for name in names), 20, what="the spans of the turn")
    [http], [send], [process] = (collector.named(name) for name in (names[0], *names[2:]))
    assert http.parent_span_id.hex() == "00f067aa0ba902b7"
    assert {span.parent_span_id for span in collector.named("chat demo-scripted")} == {http.span_id}
    assert send.parent_span_id == process.parent_span_id == http.span_id
    [called] = collector.named("MCP send tools/call calculate")
    assert called.parent_span_id == process.span_id
    assert {service for service, span in collector.spans if span.trace_id.hex() == TRACE} == {
        "dialog-engine",
        "plugins-mcp",
    }


def test_a_turn_without_a_trace_of_its_client_has_one_of_its_own(stack: Stack) -> None:
    other = stack.ask("What is 1 + 2?")
    engine, worker = (trail(stack, service, call_of(other)) for service in ("engine", "worker"))
    assert {line["traceId"] for line in (*engine, *worker)} == {engine[0]["traceId"]}
    assert engine[0]["traceId"] != TRACE


@promise("dialog-engine trace shows the store, the ledger and both logs in order")
@pytest.mark.parametrize("away", ["", "the store", "Redis", "the logs"])
def test_the_command_shows_the_store_the_ledger_and_both_logs_in_order_and_what_is_away(
    stack: Stack,
    said: Said,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    away: str,
) -> None:
    call = call_of(said)
    logs: list[str] = []
    for service in ("engine", "worker") if away != "the logs" else ():
        trail(stack, service, call)
        path = tmp_path / f"{service}.log"
        path.write_text("".join(f"{service}-1  | {line}\n" for line in output(stack, service).splitlines()))
        logs += ["--log", str(path)]
    outbox = stack.folder / "engine.sqlite3" if away != "the store" else tmp_path / "nothing"
    monkeypatch.setenv("REDIS_URL", stack.redis.url if away != "Redis" else "redis://127.0.0.1:1/0")
    monkeypatch.setenv("OUTBOX_PATH", str(outbox))

    for name in (call,) if away else (call, TRACE):
        assert commands.run(["trace", name, *logs]) == 0
        out, err = capsys.readouterr()
        lines = out.splitlines()
        assert lines == sorted(lines, key=lambda line: line[:23])
        assert ("Not available: " in err) == bool(away), err
        assert not away or f"Not available: {away}" in err
        assert ("was committed" in out) == (away != "the store")
        assert ("tool call started" in out) == (away != "the logs")
        assert ("turn finished" in out) == (away != "the logs" and name != call)
        # Without the store and without a line that names its turns, Redis cannot be asked about a session or a trace.
        assert ("published as entry" in out) == (away != "Redis")
        if not away:
            steps = [
                "was committed",
                "published as entry",
                "started by",
                "succeeded after 1 starts",
                "ended: succeeded",
            ]
            assert [out.index(step) for step in steps] == sorted(out.index(step) for step in steps)
            assert {line.split("  ")[1] for line in lines} == {"store", "ledger", "engine-1", "worker-1"}
    if not away:
        assert commands.run(["trace", "nothing", *logs]) == 1
        assert capsys.readouterr().out == ""


def test_a_scrape_in_openmetrics_has_the_trace_with_the_time(stack: Stack, said: Said) -> None:
    port = next(iter(stack.workers))
    for url, histogram in (
        (f"{stack.url}/metrics", "dialog_tool_call_seconds"),
        (f"http://127.0.0.1:{port}/metrics", "plugins_call_seconds"),
        (f"http://127.0.0.1:{port}/metrics", "plugins_call_queue_seconds"),
    ):
        answer = httpx2.get(url, headers={"Accept": "application/openmetrics-text; version=1.0.0"}, trust_env=False)
        families = {family.name: family for family in text_string_to_metric_families(answer.text)}
        exemplars = [sample.exemplar for sample in families[histogram].samples if sample.exemplar]
        assert all(len(each.labels["trace_id"]) == 32 for each in exemplars)
        assert exemplars


def test_a_refused_request_is_logged_and_counted(stack: Stack) -> None:
    assert stack.http.get("/v1/turns/nothing").status_code == 404
    [line] = [line for line in lines(stack, "engine") if line.get("path") == "/v1/turns/nothing"]
    assert (line["message"], line["status"], line["code"]) == ("request refused", 404, "TURN_NOT_FOUND")
    assert line["subject"] == "local"
    assert 'dialog_requests_refused_total{code="TURN_NOT_FOUND"} 1.0' in stack.http.get("/metrics").text
