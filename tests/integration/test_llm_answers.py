"""How the answers of a provider come, are stopped, are waited for and fail, whichever protocol it speaks."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest

from dialog_engine.errors import (
    LLMError,
    LLMOverloadedError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMStreamBrokenError,
    LLMStreamEmptyError,
    LLMUnavailableError,
)
from dialog_engine.llm.client import ChatClient
from dialog_engine.llm.reading import Waits
from dialog_engine.model import FinishReason, LLMEvent, StreamEnd, TextDelta
from tests.support.hello import KEY, REQUEST
from tests.support.scripted_provider import Exchange, Provider, Script, answer, refusal, serving
from tests.support.speech import SPEECHES, Speech

pytestmark = pytest.mark.anyio


@pytest.fixture(params=SPEECHES)
def speech(request: pytest.FixtureRequest) -> Speech:
    return SPEECHES[request.param]


@pytest.fixture
async def provider(speech: Speech) -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(speech.hello)), path=speech.path) as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider, speech: Speech) -> AsyncGenerator[ChatClient]:
    async with aclosing(speech.client(provider.url)) as client:
        yield client


async def events_of(client: ChatClient) -> list[LLMEvent]:
    return [event async for event in client.stream_chat(REQUEST)]


async def said(client: ChatClient) -> str:
    """The text of an answer that ended well."""
    *events, end = await events_of(client)
    assert isinstance(end, StreamEnd)
    assert end.finish_reason is FinishReason.STOP
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def said_by(speech: Speech, provider: Provider, *, max_retries: int = 0, waits: Waits | None = None) -> str:
    """The same with a client of its own."""
    async with aclosing(speech.client(provider.url, max_retries=max_retries, waits=waits or Waits())) as client:
        return await said(client)


def endless(speech: Speech, closed: asyncio.Event) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(speech.opening + speech.hel)
        await exchange.until_closed()
        closed.set()

    return script


# --- How an answer comes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 7, 1000])
async def test_a_stream_may_be_cut_in_any_way(
    speech: Speech, provider: Provider, client: ChatClient, size: int
) -> None:
    hello = speech.hello
    provider.scripts = [answer(*(hello[at : at + size] for at in range(0, len(hello), size)))]
    assert await said(client) == "Hello"


async def test_text_arrives_before_the_answer_ends(speech: Speech, provider: Provider, client: ChatClient) -> None:
    seen = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(speech.opening + speech.hel)
        await seen.wait()
        await exchange.send(speech.lo + speech.end)
        await exchange.end()

    provider.scripts = [script]
    events: list[LLMEvent] = []
    async for event in client.stream_chat(REQUEST):
        events.append(event)
        seen.set()
    assert events[:2] == [TextDelta("Hel"), TextDelta("lo")]


async def test_tokens_that_arrive_together_are_one_event(
    speech: Speech, provider: Provider, client: ChatClient
) -> None:
    async def many(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send_at_once(speech.opening, *([speech.hel] * 100), speech.end)
        await exchange.end()

    provider.scripts = [many]
    assert (await events_of(client))[0] == TextDelta("Hel" * 100)


async def test_a_connection_is_used_again(provider: Provider, client: ChatClient) -> None:
    for _ in range(3):
        assert await said(client) == "Hello"
    assert (provider.connections, len(provider.requests)) == (1, 3)


async def test_a_provider_that_keeps_the_stream_open_after_its_end_does_not_hold_the_answer(
    speech: Speech, provider: Provider, client: ChatClient
) -> None:
    closed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(speech.hello)
        await exchange.until_closed()
        closed.set()

    provider.scripts = [script]
    assert await said(client) == "Hello"
    await asyncio.wait_for(closed.wait(), 5)


# --- How an answer is stopped ----------------------------------------------------------------------------------------


async def test_closing_the_generator_closes_the_stream_at_the_provider(
    speech: Speech, provider: Provider, client: ChatClient
) -> None:
    closed = asyncio.Event()
    provider.scripts = [endless(speech, closed)]
    async with aclosing(client.stream_chat(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
    await asyncio.wait_for(closed.wait(), 5)


async def test_cancelling_the_reader_closes_the_stream_at_the_provider(
    speech: Speech, provider: Provider, client: ChatClient
) -> None:
    closed, seen = asyncio.Event(), asyncio.Event()
    provider.scripts = [endless(speech, closed)]

    async def read() -> None:
        async with aclosing(client.stream_chat(REQUEST)) as events:
            async for _ in events:
                seen.set()

    reader = asyncio.create_task(read())
    await asyncio.wait_for(seen.wait(), 5)
    reader.cancel()
    await asyncio.wait_for(closed.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await reader


async def test_cancelling_before_the_first_byte_closes_the_request(provider: Provider, client: ChatClient) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        asked.set()
        await exchange.until_closed()
        closed.set()

    provider.scripts = [script]
    reader = asyncio.create_task(events_of(client))
    await asyncio.wait_for(asked.wait(), 5)
    reader.cancel()
    await asyncio.wait_for(closed.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await reader


# --- How it fails ----------------------------------------------------------------------------------------------------


async def test_an_error_page_is_not_repeated_to_the_user(provider: Provider, client: ChatClient) -> None:
    provider.scripts = [answer(b"<html>Bad gateway</html>", status=502, content_type="text/html")]
    with pytest.raises(LLMUnavailableError) as caught:
        await said(client)
    assert "html" not in str(caught.value)


async def test_a_web_page_instead_of_a_stream_is_a_wrong_url(provider: Provider, client: ChatClient) -> None:
    provider.scripts = [answer(b"<html>Welcome</html>", content_type="text/html")]
    with pytest.raises(LLMRequestError, match="base URL"):
        await said(client)


async def test_before_the_first_byte_it_is_tried_again(speech: Speech, provider: Provider) -> None:
    provider.scripts = [refusal(503), refusal(429), answer(speech.hello)]
    assert await said_by(speech, provider, max_retries=2) == "Hello"
    assert len(provider.requests) == 3


async def test_a_provider_that_says_to_come_back_in_an_hour_is_not_waited_for(
    speech: Speech, provider: Provider
) -> None:
    provider.scripts = [answer(b"{}", status=429, content_type="application/json", retry_after="3600")]
    with pytest.raises(LLMRateLimitedError, match="in 3600 seconds"):
        await said_by(speech, provider, max_retries=2)
    assert len(provider.requests) == 1


async def test_after_the_first_byte_it_is_not_tried_again(speech: Speech, provider: Provider) -> None:
    provider.scripts = [answer(speech.opening + speech.hel, cut=True), answer(speech.hello)]
    with pytest.raises(LLMStreamBrokenError):
        await said_by(speech, provider, max_retries=2)
    assert len(provider.requests) == 1


@pytest.mark.parametrize("cut", [True, False], ids=["connection broken", "response ended"])
async def test_a_stream_that_breaks_off_is_an_error_after_its_text(
    speech: Speech, provider: Provider, client: ChatClient, cut: bool
) -> None:
    provider.scripts = [answer(speech.opening + speech.hel, b"data: {", cut=cut)]
    async with aclosing(client.stream_chat(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
        with pytest.raises(LLMStreamBrokenError):
            await anext(events)


async def test_a_connection_that_breaks_after_the_finish_reason_does_no_harm(
    speech: Speech, provider: Provider, client: ChatClient
) -> None:
    provider.scripts = [answer(speech.opening + speech.hel + speech.lo + speech.ending, cut=True)]
    assert await said(client) == "Hello"


async def test_an_error_inside_the_stream_is_told_after_its_text_and_without_the_key(
    speech: Speech, provider: Provider, client: ChatClient
) -> None:
    provider.scripts = [answer(speech.opening + speech.hel + speech.error(f"busy with {KEY}"))]
    async with aclosing(client.stream_chat(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
        with pytest.raises(LLMOverloadedError, match=r"busy with \*\*\*"):
            await anext(events)


async def test_an_error_that_is_called_an_event_stream_gets_its_name(provider: Provider, client: ChatClient) -> None:
    body = b'{"type": "error",\n "error": {"type": "overloaded_error", "message": "busy"}}\n'
    provider.scripts = [answer(body[:5], body[5:])]
    with pytest.raises(LLMOverloadedError, match="busy"):
        await said(client)


async def test_an_answer_of_nothing_is_an_error(speech: Speech, provider: Provider, client: ChatClient) -> None:
    provider.scripts = [answer(speech.opening + speech.end)]
    with pytest.raises(LLMStreamEmptyError):
        await said(client)


async def test_nobody_at_the_address_is_unavailable(speech: Speech) -> None:
    async with serving(Provider()) as gone:
        pass
    with pytest.raises(LLMUnavailableError) as caught:
        await said_by(speech, gone)
    assert KEY not in str(caught.value)


# --- How long it is waited for ---------------------------------------------------------------------------------------


def and_then_pings(speech: Speech, *reads: bytes) -> Script:
    """A provider that sends these and then keeps the connection open, for as long as it is let."""

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for read in reads:
            await exchange.send(read)
        gone = asyncio.create_task(exchange.until_closed())
        while not gone.done():
            await exchange.send(speech.ping)
            await asyncio.wait([gone], timeout=0.01)
        await gone

    return script


async def failure(speech: Speech, provider: Provider, waits: Waits, *, max_retries: int = 0) -> LLMError:
    with pytest.raises(LLMError) as caught:
        await said_by(speech, provider, waits=waits, max_retries=max_retries)
    return caught.value


async def test_a_provider_that_does_not_begin_is_given_up(speech: Speech, provider: Provider) -> None:
    provider.scripts = [Exchange.until_closed]
    error = await failure(speech, provider, Waits(first_token=0.05))
    assert type(error) is LLMUnavailableError
    assert "in time" in str(error)


async def test_a_provider_that_falls_silent_is_given_up(speech: Speech, provider: Provider) -> None:
    provider.scripts = [endless(speech, asyncio.Event())]
    error = await failure(speech, provider, Waits(silence=0.2))
    assert type(error) is LLMStreamBrokenError
    assert "fell silent" in str(error)


@pytest.mark.parametrize("opened", [False, True], ids=["pings only", "the head of a message and pings"])
async def test_what_only_keeps_the_connection_open_is_no_beginning(
    speech: Speech, provider: Provider, opened: bool
) -> None:
    provider.scripts = [and_then_pings(speech, speech.opening if opened else speech.ping)]
    error = await failure(speech, provider, Waits(first_token=0.3, silence=30))
    assert type(error) is LLMUnavailableError
    assert "in time: nothing came for 0.3 seconds" in str(error)


@pytest.mark.parametrize("what", ["text", "a call"])
async def test_what_only_keeps_the_connection_open_is_silence(speech: Speech, provider: Provider, what: str) -> None:
    first = speech.hel if what == "text" else speech.call
    provider.scripts = [and_then_pings(speech, speech.opening + first)]
    error = await failure(speech, provider, Waits(first_token=30, silence=0.3))
    assert type(error) is LLMStreamBrokenError
    assert "fell silent for 0.3 seconds" in str(error)


async def test_a_long_wait_for_the_first_token_is_no_silence(speech: Speech, provider: Provider) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(speech.opening)
        await asyncio.sleep(0.2)  # the model thinks
        await exchange.send(speech.hel + speech.lo + speech.end)
        await exchange.end()

    provider.scripts = [script]
    assert await said_by(speech, provider, waits=Waits(first_token=30, silence=0.05)) == "Hello"


async def test_silence_after_the_finish_reason_does_no_harm(speech: Speech, provider: Provider) -> None:
    provider.scripts = [and_then_pings(speech, speech.opening + speech.hel + speech.lo + speech.ending)]
    assert await said_by(speech, provider, waits=Waits(silence=0.1)) == "Hello"


async def test_retries_do_not_prolong_the_wait_for_the_first_token(speech: Speech, provider: Provider) -> None:
    provider.scripts = [refusal(503)]
    error = await failure(speech, provider, Waits(first_token=0.3), max_retries=1_000_000)
    assert type(error) is LLMUnavailableError
    assert "in time" in str(error)
