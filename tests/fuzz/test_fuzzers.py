"""The short form of `make fuzz`, and proof that a rule that does not hold is found."""

import pytest

from dialog_engine.http import markdown
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.tool_calls.prompt_mode.source import CodeFenceTracker, Source
from tests.fuzz.fuzzers import FUZZERS
from tests.fuzz.loop import run

pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:Do not use the `random` module")]

SECONDS = 1.0
LONGEST = 20.0
"""By then a rule that does not hold must have been found."""


@pytest.mark.parametrize("name", FUZZERS)
async def test_a_short_run_finds_nothing(name: str) -> None:
    result = await run(FUZZERS[name], SECONDS, seed=1)
    assert result.findings == []
    assert result.counts["attempts"] > 0


async def test_a_reader_that_does_not_wait_for_the_rest_of_a_tag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "before", lambda self, _: self.rest())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert (await run(FUZZERS["tags"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_reader_that_takes_examples_for_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CodeFenceTracker, "in_code", False)
    assert (await run(FUZZERS["tags"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_decoder_that_raises_at_what_is_not_json_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_it(_: OpenAIDecoder, error: ValueError) -> None:
        raise error

    monkeypatch.setattr(OpenAIDecoder, "_not_json", raise_it)
    assert (await run(FUZZERS["replies"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_renderer_that_lets_html_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_rendered", lambda text, _: text)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert (await run(FUZZERS["markdown"], LONGEST, seed=1, most_findings=1)).findings
