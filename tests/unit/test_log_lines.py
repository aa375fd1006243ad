"""Log lines: the ids of the turn or the call, as JSON and for people; and traces while tracing is off."""

import asyncio
import io
import json
import logging
import re
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import SpanKind

from callstream_runtime import tracing
from callstream_runtime.logs import set_up_logging
from callstream_runtime.outage_log import OutageLog
from callstream_runtime.settings import LogFormat, ServiceSettings, digest_of_subject
from callstream_runtime.tracing import set_log_ids, turn_ids
from dialog_engine.model import Turn
from plugins_contract.signing import RequestKeys
from tests.marks import promise

log = logging.getLogger("tests.lines")
TURN = "0199aa00-0000-7000-8000-00000000abcd"
SetUp = Callable[..., io.StringIO]


@pytest.fixture
def set_up() -> Generator[SetUp]:
    """Logging as a service sets it up, into a text; undone at the end."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level

    def start(form: LogFormat, **options: Any) -> io.StringIO:
        for handler in handlers:
            root.removeHandler(handler)
        text = io.StringIO()
        set_up_logging("INFO", form, text, **options)
        return text

    yield start
    for handler in root.handlers[:]:
        root.removeHandler(handler)
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)


def test_a_line_of_json_has_its_fields_and_the_ids_of_its_task(set_up: SetUp) -> None:
    text = set_up("json")

    async def turn() -> None:
        set_log_ids(turn_ids(Turn(TURN, "session", "ann")))
        await asyncio.create_task(call())

    async def call() -> None:
        log.info("tool call %s", "finished", extra={"state": "succeeded", "turnId": "its own"})

    async def main() -> None:
        await asyncio.create_task(turn())
        log.info("outside")

    asyncio.run(main())
    inside, outside = map(json.loads, text.getvalue().splitlines())
    assert inside.pop("timestamp")
    assert inside == {
        "level": "INFO",
        "logger": "tests.lines",
        "message": "tool call finished",
        "state": "succeeded",
        "turnId": "its own",
        "sessionId": "session",
        "traceId": TURN.replace("-", ""),
        "subject": "ann",
    }
    assert "turnId" not in outside


@promise("logs have digests of subjects where that is set")
def test_subjects_are_logged_as_digests_by_a_key_that_all_services_share(set_up: SetUp, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text(f"{'a' * 64}\n{'b' * 64}\n")
    with pytest.raises(ValueError, match="LOG_SUBJECTS: digests need a key: set REQUEST_KEYS_FILE"):
        ServiceSettings.model_validate({"log_subjects": "digest"})
    settings = ServiceSettings.model_validate({"log_subjects": "digest", "request_keys_file": tmp_path / "keys"})
    text = set_up("json", subject_as=settings.subject_as_logged)
    for subject in ("ann", "bob", "ann", ""):
        log.info("turn started", extra={"subject": subject})
    ann, bob, again, nobody = (json.loads(line)["subject"] for line in text.getvalue().splitlines())
    assert ann == again == digest_of_subject(RequestKeys(["a" * 64]), "ann")
    assert len({ann, bob, nobody, "ann", "bob"}) == 5
    assert nobody == ""
    assert re.fullmatch("[0-9a-f]{16}", ann)


def test_a_long_subject_does_not_fill_the_log(set_up: SetUp) -> None:
    text = set_up("human")
    log.info("turn started", extra={"subject": "x" * 100_000})
    assert len(text.getvalue()) < 400


@promise("SIGHUP drains as SIGTERM does, and no text reaches the terminal through a log")
def test_no_text_can_forge_a_line_for_people_or_reach_the_terminal(set_up: SetUp) -> None:
    text = set_up("human")
    hostile = "a\x1b[31mred\nINFO forged\x9b1m"
    try:
        raise ValueError(hostile)
    except ValueError:
        log.exception("failed: %s", hostile, extra={"code": hostile, "color_message": "\x1b[1mbold"})
    first, *traceback = text.getvalue().splitlines()
    assert first.endswith(r"failed: a\x1b[31mred\nINFO forged\x9b1m code=a\x1b[31mred\nINFO forged\x9b1m")
    assert traceback[0] == "Traceback (most recent call last):"
    assert not {"\x1b", "\x9b"} & set(text.getvalue())


def test_without_an_environment_there_are_no_spans() -> None:
    with tracing.exported_spans("a-service"), tracing.span("a", SpanKind.CLIENT, None, {}) as span:
        assert span is None
        assert tracing.start_span("b", SpanKind.CLIENT, None, {}) is None
        assert not trace.get_current_span().get_span_context().is_valid


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, True),
        ({"OTEL_TRACES_EXPORTER": "otlp"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318", "OTEL_SDK_DISABLED": "true"}, False),
    ],
)
def test_the_environment_decides_by_the_rules_of_opentelemetry(environment: dict[str, str], wanted: bool) -> None:
    assert tracing.wanted(environment) is wanted


def test_a_turn_has_the_trace_of_its_client_or_one_named_by_its_id() -> None:
    sent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
    assert tracing.traceparent_of_turn(TURN, sent) == sent
    own = tracing.traceparent_of_turn(TURN, None)
    # Not sampled: nobody asked for this trace.
    assert own == "00-0199aa000000700080000000 0000abcd-800000000000abcd-00".replace(" ", "")
    assert tracing.trace_id(own, TURN) == tracing.trace_id(None, TURN) == TURN.replace("-", "")


def test_a_line_of_json_is_ascii_whatever_it_is_about(set_up: SetUp, capsys: pytest.CaptureFixture[str]) -> None:
    """Controls of terminals and invisible characters stood in it, and half a character made it a traceback instead."""
    text, hostile = set_up("json"), "\x1b[31m\x9b2J\u202e\u2028\x85\ufeff\ud800"
    log.info("refused %s", hostile, extra={"path": hostile})
    line = text.getvalue()
    assert line.isascii()
    assert line.rstrip("\n").isprintable()
    assert json.loads(line)["path"] == hostile
    assert capsys.readouterr().err == ""


# --- One warning when an outage begins, one message when it ends ---


def test_an_outage_is_logged_once_when_it_begins_and_once_when_it_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    outages = OutageLog(logging.getLogger("test"), "the store")

    outages.worked()
    for _ in range(3):
        outages.failed(OSError("disk full"))
    outages.worked()
    outages.worked()
    outages.failed(OSError("disk full again"))

    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("WARNING", "the store is unavailable: disk full"),
        ("INFO", "the store is available again"),
        ("WARNING", "the store is unavailable: disk full again"),
    ]
