"""Every operation of the OpenAPI document, tried with requests that fit it and requests that do not (`make fuzz`)."""

from collections import Counter
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.api import serving
from tests.marks import promise

pytestmark = [
    pytest.mark.anyio,
    # The engine runs in this process and uses `random`, while Hypothesis makes requests in a thread.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module"),
]


@promise("every answer of the API is one that its OpenAPI document names")
async def test_every_operation_answers_as_the_document_says(tmp_path: Path, redis_url: str) -> None:
    counts = Counter[str]()
    async with serving(redis_url, tmp_path) as served:
        assert {"POST /v1/chat", "GET /v1/turns/{turn_id}/events"} <= {each.label for each in served.operations}
        for number, operation in enumerate(served.operations):
            await served.try_operation(operation, Random(number), counts)
    assert counts["requests"] >= 2 * len(served.operations)
    assert min(counts[status] for status in ("200", "401", "404", "422")) > 0


async def test_an_answer_that_the_document_does_not_name_is_found(tmp_path: Path, redis_url: str) -> None:
    async with serving(redis_url, tmp_path, undocumented="404") as served:
        turn = next(each for each in served.operations if each.label == "GET /v1/turns/{turn_id}")

        async def try_often() -> None:
            for number in range(20):
                await served.try_operation(turn, Random(number), Counter())

        with pytest.raises(AssertionError, match="404"):
            await try_often()
