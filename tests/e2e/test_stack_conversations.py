"""A conversation while an engine is killed, as processes on one PostgreSQL: what is added is there once, and belongs to
one question."""

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from openai import APIConnectionError, DefaultHttpxClient, OpenAI

from tests.marks import exhaustive, promise
from tests.support.replicas import Replica, doomed, replica
from tests.support.stack import Stack
from tests.support.waiting import wait_until_blocking

SECONDS = 120.0
pytestmark = exhaustive("processes that are killed: make test has an engine that dies in test_conversations.py")
ITEM: Any = {"type": "message", "role": "user", "content": "I have a cat."}
REPEATED = {"x-stainless-retry-count": "1"}
"""As the package sends it with a request that it repeats."""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Generator[Stack]:
    stack = Stack(tmp_path_factory.mktemp("stack"), database="postgres", quick=True, forked=True, token_delay_ms=1)
    try:
        stack.start_all_but_engines()
        yield stack
    finally:
        stack.close()


def client_of(engine: Replica) -> OpenAI:
    http = DefaultHttpxClient(trust_env=False)
    return OpenAI(base_url=f"http://127.0.0.1:{engine.port}/v1", api_key="any", max_retries=0, http_client=http)


def _add_and_ask(client: Any, question: dict[str, Any]) -> None:
    client.conversations.items.create(question["conversation"], items=[ITEM])
    client.responses.create(**question)


@promise(
    "what a client adds to a conversation is there once, whenever an engine is killed, and comes before one question"
)
@pytest.mark.parametrize(
    "step",
    [
        "before SqlConversations.add",
        "after SqlConversations.add",
        "before SqlTurns.begin",
        "after SqlTurns.begin",
    ],
)
def test_an_engine_is_killed(stack: Stack, tmp_path: Path, step: str) -> None:
    crash_at = tmp_path / "crash-at"
    with (
        replica(stack, "two") as two,
        replica(stack, "one", doomed(crash_at)) as one,
        client_of(one) as here,
        client_of(two) as second,
    ):
        there: Any = second
        conversation = here.conversations.create(metadata={"topic": "cats"}).id
        question: Any = {"model": here.models.list().data[0].id, "input": "Hi", "conversation": conversation}
        crash_at.write_text(f"1 {step}")
        with pytest.raises(APIConnectionError):
            _add_and_ask(here, question)
        wait_until_blocking(lambda: one.process.returncode is not None, SECONDS, what="the kill")

        if "SqlConversations" in step:
            [added] = there.conversations.items.create(conversation, items=[ITEM], extra_headers=REPEATED).data
            assert [each.id for each in there.conversations.items.list(conversation)] == [added.id]
        response: Any = there.responses.create(**question, extra_headers=REPEATED, timeout=SECONDS)
        assert response.status == "completed", response
        items = [*there.conversations.items.list(conversation, order="asc")]
        assert [getattr(each, "role", "") for each in items] == ["user", "user", "assistant"]
        assert items[-1].id == response.output[-1].id
        assert there.conversations.retrieve(conversation).metadata == {"topic": "cats"}
