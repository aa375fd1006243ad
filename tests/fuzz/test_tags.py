"""The short form of `make fuzz`, and proof that its rules can be broken."""

import pytest

from dialog_engine.tool_calls.prompt_mode.source import CodeFenceTracker, Source
from tests.fuzz.tags import run

SECONDS = 4


def test_a_short_run_finds_nothing() -> None:
    result = run(SECONDS, seed=1)
    assert result.findings == []
    assert result.replies > 100


def test_a_reader_that_does_not_wait_for_the_rest_of_a_tag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "before", lambda self, _: self.rest())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert run(SECONDS, seed=1, most_findings=1).findings


def test_a_reader_that_takes_examples_for_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeFenceTracker, "in_code", False)
    assert run(SECONDS, seed=1, most_findings=1).findings
