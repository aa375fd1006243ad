"""The short form of `make fuzz`."""

import pytest

from tests.fuzz.fuzzers import FUZZERS
from tests.fuzz.loop import run
from tests.marks import promise

# The engine runs in this process and uses `random`, while Hypothesis makes requests in a thread.
pytestmark = [pytest.mark.anyio, pytest.mark.filterwarnings("ignore:Do not use the `random` module")]

SECONDS = 1.0


@promise("hostile input of any side gives a named error, and others are served")
@promise("prompt mode: both dialects and <tool_call>, no argument dropped, safe at every split, no tag ever shown")
@pytest.mark.parametrize("name", FUZZERS)
async def test_a_short_run_finds_nothing(name: str) -> None:
    result = await run(FUZZERS[name], SECONDS, seed=1)
    assert result.findings == []
    assert result.counts["attempts"] > 0
