"""Requests made from the OpenAPI document of the running engine: no 5xx, and every answer is as the document says.

schemathesis makes requests that fit the document and requests that do not, for every operation. Some have a key and
some do not; many name a session and a turn that exist.
"""

import asyncio
import warnings
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from schemathesis import GenerationMode, checks
from schemathesis.specs.openapi import checks as openapi_checks

from tests.fuzz.facade_bodies import ACCEPTED, ITEM, MODEL
from tests.fuzz.limits import TIMES
from tests.integration.engines import Engine, Model, running_engine, settings
from tests.marks import exhaustive, promise

pytestmark = [
    # The engine runs in this process and uses `random`, while Hypothesis makes requests in a thread.
    pytest.mark.filterwarnings("ignore:Do not use the `random` module")
]

KEY = "a-key-of-sixteen-characters"
AUTHORIZATION = {"Authorization": f"Bearer {KEY}"}
_server: Any = checks
_documented: Any = openapi_checks
CHECKS: list[Any] = [
    _server.not_a_server_error,
    _documented.status_code_conformance,
    _documented.content_type_conformance,
    _documented.response_headers_conformance,
    _documented.response_schema_conformance,
]
SECONDS = 15.0
"""How long one answer may take, with a whole event stream."""
FACADES = ("/v1/chat/completions", "/v1/models", "/v1/responses", "/v1/conversations", "/v1/ai-sdk/")
EXAMPLES = 3
"""The requests of one attempt for one operation."""
UNLIMITED = {"subject_requests_per_minute": 0, "subject_max_turns": 0, "subject_max_streams": 0}


@dataclass(frozen=True, slots=True)
class Api:
    """The engine, and its document."""

    engine: Engine
    operations: list[Any]

    async def try_operation(
        self, operation: Any, random: Random, counts: Counter[str], *, accepted: bool = False
    ) -> None:
        """A few requests of one operation: with `accepted` of those that it accepts. Raises if one of the answers is
        not as the document says."""
        known = await self._known()
        await asyncio.to_thread(self._try, operation, known, random.randrange(1 << 32), counts, accepted)

    async def _known(self) -> dict[str, str]:
        """A session with an item that waits, a turn, a response and a model, by the names that they have in paths."""
        body = {"model": MODEL, "input": "Hi"}
        answer = await self.engine.client.post("/v1/responses", json=body, headers=AUTHORIZATION)
        assert answer.status_code == 200, answer.text
        session_id = answer.headers["x-session-id"]
        items = f"/v1/conversations/{session_id}/items"
        added = await self.engine.client.post(items, json={"items": [ITEM]}, headers=AUTHORIZATION)
        assert added.status_code == 200, added.text
        known = {"session_id": session_id, "chat_id": session_id, "response_id": answer.json()["id"]}
        known |= {"conversation_id": session_id, "item_name": added.json()["last_id"]}
        return {**known, "name": MODEL, "turn_id": answer.headers["x-turn-id"]}

    def _try(self, operation: Any, known: dict[str, str], number: int, counts: Counter[str], accepted: bool) -> None:
        wanted = [GenerationMode.POSITIVE] if accepted else GenerationMode
        modes = [operation.as_strategy(generation_mode=mode) for mode in wanted]
        body = ACCEPTED.get(operation.label, st.none()) if accepted else st.none()

        @seed(number)
        @hypothesis_settings(
            max_examples=EXAMPLES,
            deadline=None,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
            print_blob=False,
        )
        @given(case=st.one_of(modes), body=body, exists=st.booleans(), key=st.integers(0, 3))
        def requests(case: Any, body: Any, exists: bool, key: int) -> None:
            exists, key = exists or accepted, key or accepted
            if body is not None:
                case.body = body
            if exists:
                case.path_parameters.update({name: known[name] for name in case.path_parameters if name in known})
            if accepted and "after" in (case.query or ()):
                case.query["after"] = known["item_name"]
            headers = AUTHORIZATION if key else {}
            with warnings.catch_warnings(action="ignore"):
                response = case.call(base_url=self.engine.url, headers=headers, timeout=SECONDS)
                counts["requests"] += 1
                counts[str(response.status_code)] += 1
                counts[f"{operation.label} {response.status_code // 100}xx"] += 1
                case.validate_response(response, checks=CHECKS)
            behind_key = case.operation.path.startswith(("/v1/", "/ui/"))
            if behind_key and not key:
                assert response.status_code == 401, case.as_curl_command()

        try:
            requests()
        except BaseExceptionGroup as failures:  # schemathesis' failures are no Exception
            raise AssertionError(str(failures)) from None


@asynccontextmanager
async def serving(redis_url: str, folder: Path) -> AsyncGenerator[Api]:
    """An engine with a key, and the operations of its document."""
    async with Model().serving() as model:
        configured = settings(folder, redis_url, model.url, api_keys={"ann": KEY}, **UNLIMITED)
        async with running_engine(configured) as engine:
            schema: Any = schemathesis.openapi.from_dict(engine.app.openapi())
            schema.validate()
            yield Api(engine, [found.ok() for found in schema.get_all_operations()])


@exhaustive("hundreds of requests that it makes up")
@promise(
    "every answer of the API is one that its OpenAPI document names", only_in_test_all="takes ten seconds of a core"
)
async def test_every_operation_answers_as_the_document_says(tmp_path: Path, redis_url: str) -> None:
    counts = Counter[str]()
    async with serving(redis_url, tmp_path) as served:
        assert {"POST /v1/chat", "GET /v1/turns/{turn_id}/events"} <= {each.label for each in served.operations}
        for number, operation in enumerate(served.operations * TIMES):
            await served.try_operation(operation, Random(number), counts)
        facades = [each for each in served.operations if each.path.startswith(FACADES)]
        counts_of_accepted = Counter[str]()
        for number, operation in enumerate(facades * TIMES):
            await served.try_operation(operation, Random(number), counts_of_accepted, accepted=True)
    assert [each.label for each in facades if not counts_of_accepted[f"{each.label} 2xx"]] == []
    assert counts["requests"] >= 2 * len(served.operations)
    assert min(counts[status] for status in ("200", "401", "404", "422")) > 0
