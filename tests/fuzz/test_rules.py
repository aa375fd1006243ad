"""Each fuzzer finds a defence that is missing."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from mcp.types import ContentBlock

from dialog_engine.http import markdown
from dialog_engine.http.guards import BodyLimit
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.tool_calls.prompt_mode.quotes import QuoteTracker
from dialog_engine.tool_calls.prompt_mode.source import Source
from plugins_contract.signing import RequestKeys
from plugins_mcp.mcp import content
from tests.fuzz import results
from tests.fuzz.fuzzers import FUZZERS
from tests.fuzz.loop import run
from tests.marks import exhaustive

pytestmark = [pytest.mark.anyio, exhaustive("the fuzzers themselves")]

LONGEST = 30.0
"""By then a rule that does not hold must have been found."""


async def test_a_reader_that_does_not_wait_for_the_rest_of_a_tag_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Source, "before", lambda self, _: self.rest())  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert (await run(FUZZERS["tags"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_reader_that_takes_examples_for_calls_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(QuoteTracker, "quoted", False)
    assert (await run(FUZZERS["tags"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_decoder_that_raises_at_what_is_not_json_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_it(_: OpenAIDecoder, error: ValueError) -> None:
        raise error

    monkeypatch.setattr(OpenAIDecoder, "_not_json", raise_it)
    assert (await run(FUZZERS["replies"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_renderer_that_lets_html_pass_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(markdown, "_rendered", lambda text, _: text)  # pyright: ignore[reportUnknownLambdaType, reportUnknownArgumentType]
    assert (await run(FUZZERS["markdown"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_worker_that_accepts_any_signature_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def accept(_: RequestKeys, event: bytes, signature: bytes, *, has_ledger: bool) -> bool:
        return bool(event) or bool(signature) or has_ledger

    monkeypatch.setattr(RequestKeys, "accept", accept)
    assert (await run(FUZZERS["requests"], LONGEST, seed=1, most_findings=1)).findings


async def test_content_that_raises_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def raise_it(block: ContentBlock) -> Iterator[object]:
        raise AssertionError(block)

    monkeypatch.setattr(content, "_translated", raise_it)
    assert (await run(FUZZERS["results"], LONGEST, seed=1, most_findings=1)).findings


async def test_a_circuit_that_a_hostile_answer_opens_is_no_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "POLICY", replace(results.POLICY, failure_threshold=1))
    assert not (await run(FUZZERS["results"], 1.0, seed=1, most_findings=1)).findings


async def test_a_request_that_fails_with_an_internal_error_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def raise_it(*_: object) -> None:
        raise LookupError

    monkeypatch.setattr(BodyLimit, "__call__", raise_it)
    assert (await run(FUZZERS["http"], LONGEST, seed=1, most_findings=1)).findings
