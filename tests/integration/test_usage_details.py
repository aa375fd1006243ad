"""What a part of a turn's tokens was: read from the provider's cache, or reasoning."""

from typing import Any

from httpx2 import Response
from redis import Redis as SyncRedis

from tests.integration.conftest import Start
from tests.integration.engines import Engine, Model
from tests.integration.test_chat_completions import client_of, model_of
from tests.marks import promise

DETAILS = {"cached_tokens": 4, "cache_write_tokens": 2}
NATIVE = {"inputTokens": 7, "outputTokens": 3, "cachedTokens": 4, "cacheWriteTokens": 2, "reasoningTokens": 1}


async def spent(engine: Engine, turn_id: str) -> list[dict[str, Any]]:
    """The usage as a stream of the turn says it, and its record."""
    async with engine.stream("GET", f"/v1/turns/{turn_id}/events") as stream:
        *_, last = [event async for event in stream]
    return [last.data["usage"], (await engine.client.get(f"/v1/turns/{turn_id}")).json()["usage"]]


def said(stream: Response) -> str:
    """The usage at the end of a stream of a response, as it stands there."""
    return stream.text.split('"usage":')[-1].split(',"sequence_number"')[0]


@promise("cached and reasoning tokens are the same live, read again, and read from the store")
async def test_the_details_of_usage_are_the_same_live_and_from_the_store(
    start: Start, redis_url: str, model: Model
) -> None:
    model.details = {"prompt_tokens_details": DETAILS, "completion_tokens_details": {"reasoning_tokens": 1}}
    async with start() as engine, client_of(engine) as client:
        name = await model_of(client)
        async with client.responses.stream(model=name, input="Hi") as stream:
            first = await stream.get_final_response()
        completed: Any = {"model": name, "messages": [{"role": "user", "content": "Hi"}]}
        options: Any = {"stream": True, "stream_options": {"include_usage": True}}
        completions: Any = client.chat.completions
        *_, chunk = [each async for each in await completions.create(**completed, **options)]
        plain = await completions.create(**completed)
        turn_id = (await engine.client.get("/v1/sessions")).json()["sessions"][0]["leafTurnId"]
        live, read = (
            await spent(engine, turn_id),
            await engine.client.get(path := f"/v1/responses/{first.id}?stream=true"),
        )
    with SyncRedis.from_url(redis_url) as redis:
        redis.flushall()
    async with start() as engine, client_of(engine) as client:
        replayed = await spent(engine, turn_id)
        again = await client.responses.retrieve(first.id)
        read_again = await engine.client.get(path)

    assert first.usage
    assert first.usage.input_tokens_details.model_dump(exclude_none=True) == DETAILS
    assert first.usage.output_tokens_details.reasoning_tokens == 1
    assert again.usage == first.usage
    assert said(read) == said(read_again)
    assert chunk.usage == plain.usage
    assert plain.usage.prompt_tokens_details.model_dump(exclude_none=True) == DETAILS
    assert plain.usage.completion_tokens_details.reasoning_tokens == 1
    assert live == replayed == [NATIVE, NATIVE]
