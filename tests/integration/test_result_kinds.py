"""Every kind of content that a tool may return, from a real MCP server through a real worker, as engines get it."""

import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ContentBlock, LinkBlock, MediaBlock, TextBlock
from plugins_mcp.mcp.content import EMPTY_RESULT, FAILED_WITHOUT_TEXT
from tests.integration.servers import KINDS
from tests.integration.servers.kinds import LOG, RESULTS
from tests.marks import promise
from tests.support.working import Caller, calling, working

pytestmark = pytest.mark.anyio

PICTURE = MediaBlock("image/png", "QUJD")
SUCCEEDED: dict[str, tuple[ContentBlock, ...]] = {
    "text": (TextBlock("grün 🌳"),),
    "texts": (TextBlock("one"), TextBlock("two")),
    "structured": (TextBlock('{"städte": ["Köln"]}'),),
    "structured and as text": (TextBlock('{\n  "a": 1\n}'),),
    "structured and more": (TextBlock("One row."), TextBlock('{"a": 1}')),
    "image": (PICTURE,),
    "audio": (MediaBlock("audio/wav", "QUJD"),),
    "file of text": (TextBlock("[f://a.css, text/css]\nb {}"),),
    "file": (MediaBlock("application/pdf", "QUJD", "f://a"),),
    "link": (LinkBlock("f://a", "a", "text/css", title="A", size=7),),
    "for the user": (
        TextBlock("for both"),
        TextBlock("for the user", user_only=True),
        MediaBlock("image/png", "QUJD", user_only=True),
    ),
    "nothing": (TextBlock(EMPTY_RESULT),),
    "empty text": (TextBlock(EMPTY_RESULT),),
    "long": (TextBlock(LOG),),
}
FAILED: dict[str, tuple[tuple[ContentBlock, ...], str]] = {
    "failure": ((TextBlock("no such table"),), "no such table"),
    "failure with a picture": ((PICTURE,), FAILED_WITHOUT_TEXT),
}


@pytest.fixture
async def caller(redis_url: str, tmp_path: Path) -> AsyncGenerator[Caller]:
    """The caller of a worker that has the server."""
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"kinds": {"command": sys.executable, "args": [str(KINDS)]}}}))
    async with calling(redis_url) as caller, working(redis_url, path):
        yield caller


@promise("results of every content type are kept, and cut to head and tail")
async def test_each_kind_of_content_comes_through_a_worker(caller: Caller) -> None:
    assert {*SUCCEEDED, *FAILED} == {*RESULTS}
    requests = {kind: await caller.call("give", server="kinds", kind=kind) for kind in RESULTS}
    outcomes = {kind: await caller.outcome(request) for kind, request in requests.items()}

    for kind, content in SUCCEEDED.items():
        outcome = outcomes[kind]
        assert (outcome.state, outcome.content, outcome.error) == (CallState.SUCCEEDED, content, None), kind
    for kind, (content, words) in FAILED.items():
        outcome = outcomes[kind]
        assert outcome.error is not None, kind
        assert (outcome.state, outcome.content) == (CallState.FAILED, content), kind
        assert (outcome.error.code, outcome.error.message) == (ErrorCode.TOOL_EXECUTION_FAILED, words), kind
    assert not any(outcome.truncated for outcome in outcomes.values())
