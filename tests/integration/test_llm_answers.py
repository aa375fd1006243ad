"""Answers of a provider in either protocol: streaming, cancellation, errors and timeouts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

import pytest

from dialog_engine.errors import (
    LLMError,
    LLMOverloadedError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMStreamBrokenError,
    LLMUnavailableError,
)
from dialog_engine.llm.provider import DEFAULT_TIMEOUTS, Timeouts
from dialog_engine.model import ChatEvent, FinishReason, Meter, StreamEnd, TextDelta, Turn, Usage
from dialog_engine.tool_calls.ports import AnswerObserver, ModelObserver
from tests.marks import promise
from tests.support.hello import KEY, REQUEST
from tests.support.protocols import PROTOCOLS, Model, Protocol
from tests.support.scripted_provider import Exchange, Provider, Script, answer, refusal, serving
from tests.support.waiting import wait_until


@pytest.fixture(params=PROTOCOLS)
def protocol(request: pytest.FixtureRequest) -> Protocol:
    return PROTOCOLS[request.param]


@pytest.fixture
async def provider(protocol: Protocol) -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(protocol.hello)), path=protocol.path) as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider, protocol: Protocol) -> AsyncGenerator[Model]:
    async with aclosing(protocol.client(provider.url)) as client:
        yield client


class Seen(ModelObserver, AnswerObserver):
    """The facts about the requests to one model, in order."""

    def __init__(self) -> None:
        self.facts: list[str] = []

    def retried(self, times: int) -> None:
        self.facts.append(f"retried {times}")

    def request(self, turn: Turn) -> AnswerObserver:
        return self

    def began(self) -> None:
        self.facts.append("began")

    def completed(self, usage: Usage) -> None:
        self.facts.append("completed")

    def __exit__(self, kind: object, error: object, traceback: object) -> None:
        self.facts.append("failed" if isinstance(error, LLMError) else "ended")


async def events_of(client: Model) -> list[ChatEvent]:
    return [event async for event in await client.open(REQUEST)]


async def said(client: Model) -> str:
    """The text of an answer that ended well."""
    *events, end = await events_of(client)
    assert isinstance(end, StreamEnd)
    assert end.finish_reason is FinishReason.STOP
    return "".join(event.text for event in events if isinstance(event, TextDelta))


async def said_by(
    protocol: Protocol, provider: Provider, *, max_retries: int = 0, timeouts: Timeouts = DEFAULT_TIMEOUTS
) -> str:
    """The same with a client of its own."""
    async with aclosing(protocol.client(provider.url, max_retries=max_retries, timeouts=timeouts)) as client:
        return await said(client)


def endless(protocol: Protocol, closed: asyncio.Event) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(protocol.opening + protocol.hel)
        await exchange.until_closed()
        closed.set()

    return script


# --- How an answer comes ---------------------------------------------------------------------------------------------


@promise("a stopped reply is counted: what was reported, the rest as an estimate that is marked")
@pytest.mark.parametrize(
    ("sent", "cost"),
    [
        (["hel"], Usage(0, 1, estimated=True)),
        ([1, "hel", "lo"], Usage(70, 3, True, 40, 20, 1)),
        ([1, "hel", 9], Usage(70, 9, False, 40, 20, 1)),
    ],
    ids=["no report", "text after the report", "a report after the text"],
)
async def test_the_cost_of_an_answer_that_is_left_is_what_was_reported_and_the_pieces_since(
    protocol: Protocol, provider: Provider, client: Model, sent: list[str | int], cost: Usage
) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        parts = (protocol.usage(70, each) if isinstance(each, int) else getattr(protocol, each) for each in sent)
        await exchange.send(b"".join(parts))
        await exchange.until_closed()

    provider.scripts = [script]
    request = replace(REQUEST, meter=Meter())
    async with aclosing(await client.open(request)) as events:
        await anext(events)
    assert request.meter.reported == cost


async def test_tokens_that_arrive_together_are_one_event(protocol: Protocol, provider: Provider, client: Model) -> None:
    async def many(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send_at_once(protocol.opening, *([protocol.hel] * 100), protocol.end)
        await exchange.end()

    provider.scripts = [many]
    assert (await events_of(client))[0] == TextDelta("Hel" * 100)


async def test_an_answer_of_nothing_is_complete_and_leaves_its_connection_to_the_next(
    protocol: Protocol, provider: Provider, client: Model
) -> None:
    provider.scripts = [answer(protocol.opening + protocol.end), answer(protocol.hello)]
    assert [await said(client) for _ in range(3)] == ["", "Hello", "Hello"]
    assert (provider.connections, len(provider.requests)) == (1, 3)


# --- How an answer is stopped ----------------------------------------------------------------------------------------


@promise("answers come, are stopped and fail in the same way whichever protocol a provider speaks")
async def test_cancelling_the_reader_closes_the_stream_at_the_provider(
    protocol: Protocol, provider: Provider, client: Model
) -> None:
    closed, seen = asyncio.Event(), asyncio.Event()
    provider.scripts = [endless(protocol, closed)]

    async def read() -> None:
        async with aclosing(await client.open(REQUEST)) as events:
            async for _ in events:
                seen.set()

    reader = asyncio.create_task(read())
    await asyncio.wait_for(seen.wait(), 5)
    reader.cancel()
    await asyncio.wait_for(closed.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await reader


# --- How it fails ----------------------------------------------------------------------------------------------------


async def test_an_error_page_is_not_repeated_to_the_user(provider: Provider, client: Model) -> None:
    provider.scripts = [answer(b"<html>Bad gateway</html>", status=502, content_type="text/html")]
    with pytest.raises(LLMUnavailableError) as caught:
        await said(client)
    assert "html" not in str(caught.value)


async def test_a_web_page_instead_of_a_stream_is_a_wrong_url_and_is_closed_unread(
    provider: Provider, client: Model
) -> None:
    closed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start(content_type="text/html")
        await exchange.send(b"<html>Welcome")
        await exchange.until_closed()
        closed.set()

    provider.scripts = [script]
    with pytest.raises(LLMRequestError, match="base URL"):
        await said(client)
    await asyncio.wait_for(closed.wait(), 5)


@promise("a provider is asked again before the first byte, within bounds")
async def test_before_the_first_byte_it_is_tried_again_which_is_reported_and_logged_whether_it_helped_or_not(
    protocol: Protocol, provider: Provider, caplog: pytest.LogCaptureFixture
) -> None:
    observer = Seen()
    async with aclosing(protocol.client(provider.url, max_retries=2, observer=observer)) as client:
        provider.scripts = [refusal(429), answer(protocol.hello)]
        assert await said(client) == "Hello"
        provider.scripts = [refusal(503), refusal(503), refusal(503)]
        with pytest.raises(LLMUnavailableError):
            await said(client)
        provider.scripts = [answer(protocol.hello)]
        assert await said(client) == "Hello"
    answered = ["began", "completed", "ended"]
    assert observer.facts == ["retried 1", *answered, "retried 2", "failed", *answered]
    assert [message for message in caplog.messages if "repeated" in message] == [
        f"a request to model was repeated {times} before an answer began" for times in ("once", "2 times")
    ]


@promise("a provider is asked again before the first byte, within bounds")
async def test_a_provider_that_says_to_come_back_in_a_minute_is_not_waited_for(
    protocol: Protocol, provider: Provider
) -> None:
    provider.scripts = [answer(b"{}", status=429, content_type="application/json", retry_after="60")]
    with pytest.raises(LLMRateLimitedError, match="in 60 seconds"):
        await said_by(protocol, provider, max_retries=2)
    assert len(provider.requests) == 1


@promise("answers come, are stopped and fail in the same way whichever protocol a provider speaks")
@pytest.mark.parametrize("cut", [True, False], ids=["connection broken", "response ended"])
async def test_a_stream_that_breaks_off_is_an_error_after_its_text_and_not_tried_again(
    protocol: Protocol, provider: Provider, cut: bool
) -> None:
    provider.scripts = [answer(protocol.opening + protocol.hel, b"data: {", cut=cut), answer(protocol.hello)]
    async with (
        aclosing(protocol.client(provider.url, max_retries=2)) as client,
        aclosing(await client.open(REQUEST)) as events,
    ):
        assert await anext(events) == TextDelta("Hel")
        with pytest.raises(LLMStreamBrokenError):
            await anext(events)
    assert len(provider.requests) == 1


@pytest.mark.parametrize("then", ["broken", "silent", "open"])
async def test_what_happens_after_the_finish_reason_does_no_harm(
    protocol: Protocol, provider: Provider, then: str
) -> None:
    finished = protocol.opening + protocol.hel + protocol.lo + protocol.ending
    provider.scripts = {
        "broken": [answer(finished, cut=True)],
        "silent": [and_then_pings(protocol, finished)],
        "open": [and_then_pings(protocol, protocol.hello)],
    }[then]
    assert await said_by(protocol, provider, timeouts=Timeouts(silence=0.1)) == "Hello"
    await wait_until(lambda: not provider.open, 5, what="the end of the connection")


@promise("answers come, are stopped and fail in the same way whichever protocol a provider speaks")
async def test_an_error_inside_the_stream_is_reported_after_its_text_and_without_the_key(
    protocol: Protocol, provider: Provider, client: Model
) -> None:
    provider.scripts = [answer(protocol.opening + protocol.hel + protocol.error(f"busy with {KEY}"))]
    async with aclosing(await client.open(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
        with pytest.raises(LLMOverloadedError, match=r"busy with \*\*\*"):
            await anext(events)


async def test_an_error_that_is_called_an_event_stream_gets_its_name(provider: Provider, client: Model) -> None:
    body = b'{"type": "error",\n "error": {"type": "overloaded_error", "message": "busy"}}\n'
    provider.scripts = [answer(body[:5], body[5:])]
    with pytest.raises(LLMOverloadedError, match="busy"):
        await said(client)


async def test_an_address_without_a_server_is_unavailable(protocol: Protocol) -> None:
    async with serving(Provider()) as gone:
        pass
    with pytest.raises(LLMUnavailableError, match="it cannot be reached") as caught:
        await said_by(protocol, gone)
    assert KEY not in str(caught.value)


# --- How long it is waited for ---------------------------------------------------------------------------------------


def and_then_pings(protocol: Protocol, *reads: bytes) -> Script:
    """A provider that sends these and then keeps the connection open, for as long as it is let."""

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for read in reads:
            await exchange.send(read)
        gone = asyncio.create_task(exchange.until_closed())
        while not gone.done():
            await exchange.send(protocol.ping)
            await asyncio.wait([gone], timeout=0.01)
        await gone

    return script


async def failure(protocol: Protocol, provider: Provider, timeouts: Timeouts, *, max_retries: int = 0) -> LLMError:
    with pytest.raises(LLMError) as caught:
        await said_by(protocol, provider, timeouts=timeouts, max_retries=max_retries)
    return caught.value


@promise("a provider that sends nothing ends a turn after a bounded time")
@pytest.mark.parametrize("sent", [[], ["ping"], ["opening"], ["opening", "thought"]], ids=" ".join)
async def test_what_only_keeps_the_connection_open_is_no_beginning(
    protocol: Protocol, provider: Provider, sent: list[str]
) -> None:
    pings = and_then_pings(protocol, *(getattr(protocol, each) for each in sent))
    provider.scripts = [pings if sent else Exchange.until_closed]
    error = await failure(protocol, provider, Timeouts(first_token=0.3, silence=30))
    assert type(error) is LLMUnavailableError
    assert "in time" in str(error)


@promise("a provider that sends nothing ends a turn after a bounded time")
@pytest.mark.parametrize("what", ["text", "a call"])
async def test_what_only_keeps_the_connection_open_is_silence(
    protocol: Protocol, provider: Provider, what: str
) -> None:
    first = protocol.hel if what == "text" else protocol.call
    provider.scripts = [and_then_pings(protocol, protocol.opening + first)]
    error = await failure(protocol, provider, Timeouts(first_token=30, silence=0.3))
    assert type(error) is LLMStreamBrokenError
    assert "was silent for 0.3 seconds" in str(error)


async def test_a_long_wait_for_the_first_token_is_no_silence(protocol: Protocol, provider: Provider) -> None:
    timeouts = Timeouts(first_token=30, silence=0.05)
    loop = asyncio.get_running_loop()

    async def script(exchange: Exchange) -> None:
        asked_at = loop.time()
        await exchange.start()
        await exchange.send(protocol.opening)
        await wait_until(lambda: loop.time() > asked_at + 4 * timeouts.silence, what="a long silence")
        await exchange.send(protocol.hel + protocol.lo + protocol.end)
        await exchange.end()

    provider.scripts = [script]
    assert await said_by(protocol, provider, timeouts=timeouts) == "Hello"


@promise("a provider is asked again before the first byte, within bounds")
async def test_retries_do_not_prolong_the_wait_for_the_first_token(protocol: Protocol, provider: Provider) -> None:
    provider.scripts = [refusal(503)]
    error = await failure(protocol, provider, Timeouts(first_token=0.3), max_retries=1_000_000)
    assert type(error) is LLMUnavailableError
    assert "in time" in str(error)
