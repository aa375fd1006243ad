"""A client of a provider closes every response, so that its connection is free again."""

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import httpx2
import pytest
from openai import APIStatusError, OpenAIError

from dialog_engine.errors import LLMRequestError
from dialog_engine.llm.client import Json, Provider
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.model import ChatRequest, LLMEvent, TextDelta, Turn, UserMessage

pytestmark = pytest.mark.anyio

REQUEST = ChatRequest((UserMessage("Hello"),), Turn("turn", "session", "someone"))
HALF_AN_ANSWER = b'data: {"choices": [{"index": 0, "delta": {"content": "Hi"}}]}\n\n'


class Body(httpx2.AsyncByteStream):
    """A response that begins and does not end. `closed`: its connection was given back."""

    def __init__(self) -> None:
        self.closed = False

    async def __aiter__(self) -> AsyncIterator[bytes]:
        while True:
            yield HALF_AN_ANSWER

    async def aclose(self) -> None:
        self.closed = True


def answer(stream: Body, content_type: str) -> AsyncGenerator[LLMEvent]:
    async def post(body: Json, max_retries: int) -> httpx2.Response:
        request = httpx2.Request("POST", "http://provider.test/v1")
        return httpx2.Response(200, headers={"content-type": content_type}, stream=stream, request=request)

    async def close() -> None:
        pass

    provider = Provider(post, close, "http://provider.test/v1", APIStatusError, OpenAIError)
    return OpenAIChatClient(provider, "model").stream_chat(REQUEST)


async def test_a_web_page_in_place_of_an_answer_is_closed_unread() -> None:
    body = Body()

    with pytest.raises(LLMRequestError, match="web page"):
        async with aclosing(answer(body, "text/html")) as events:
            await anext(events)

    assert body.closed


async def test_an_answer_that_is_not_wanted_any_more_is_closed() -> None:
    body = Body()

    async with aclosing(answer(body, "text/event-stream")) as events:
        assert await anext(events) == TextDelta("Hi")

    assert body.closed
