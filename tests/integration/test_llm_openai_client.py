"""The client against a provider on a real connection: what it sends, how answers end, and how they fail."""

import asyncio
import json
from base64 import b64encode
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest

from dialog_engine.errors import (
    ConfigurationError,
    LLMAuthenticationError,
    LLMError,
    LLMOverloadedError,
    LLMQuotaError,
    LLMRateLimitedError,
    LLMRequestError,
    LLMStreamBrokenError,
    LLMStreamEmptyError,
    LLMUnavailableError,
)
from dialog_engine.llm.openai_client import OpenAIChatClient
from dialog_engine.llm.profiles import PROFILES
from dialog_engine.llm.waits import Waits
from dialog_engine.model import (
    AssistantMessage,
    ChatRequest,
    FinishReason,
    LLMEvent,
    StreamEnd,
    TextDelta,
    ToolCall,
    ToolCallEvent,
    ToolMessage,
    Turn,
    Usage,
    UserMessage,
)
from plugins_contract.catalogue import ToolEntry
from tests.support.scripted_provider import Exchange, Provider, Script, answer, refusal, serving

pytestmark = pytest.mark.anyio

KEY = "hunter2hunter2"
TURN = Turn("turn", "session", "subject")
REQUEST = ChatRequest((UserMessage("Hi"),), TURN)
TOOL = ToolEntry(name="clock__now", server="clock", tool="now", input_schema={"type": "object", "properties": {}})

DONE = b"data: [DONE]\n\n"


def sse(*chunks: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)


def text(content: str, finish_reason: str | None = None) -> bytes:
    return sse({"choices": [{"delta": {"content": content}, "finish_reason": finish_reason}]})


HELLO = text("Hel") + text("lo") + text("", "stop") + DONE
HELLO_EVENTS = [TextDelta("Hello"), StreamEnd(FinishReason.STOP)]


@pytest.fixture
async def provider() -> AsyncGenerator[Provider]:
    async with serving(Provider(answer(HELLO))) as provider:
        yield provider


@pytest.fixture
async def client(provider: Provider) -> AsyncGenerator[OpenAIChatClient]:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0)
    yield client
    await client.aclose()


async def ask(client: OpenAIChatClient, request: ChatRequest = REQUEST) -> list[LLMEvent]:
    return [event async for event in client.stream_chat(request)]


def joined(events: list[LLMEvent]) -> str:
    return "".join(event.text for event in events if isinstance(event, TextDelta))


# --- What is sent ----------------------------------------------------------------------------------------------------


async def test_the_request_carries_the_key_the_model_and_the_history(
    provider: Provider, client: OpenAIChatClient
) -> None:
    assert await ask(client) == HELLO_EVENTS
    assert f"authorization: bearer {KEY}" in provider.heads[0]
    assert provider.requests == [
        {
            "model": "model",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ]


async def test_tools_are_offered_as_functions(provider: Provider, client: OpenAIChatClient) -> None:
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,)))
    assert provider.requests[0]["tools"][0]["function"]["name"] == "clock__now"


async def test_a_last_answer_declares_the_tools_and_forbids_to_call_them(
    provider: Provider, client: OpenAIChatClient
) -> None:
    await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only=True))
    assert provider.requests[0]["tools"][0]["function"]["name"] == "clock__now"
    assert provider.requests[0]["tool_choice"] == "none"


@pytest.mark.parametrize("words", ["unknown field: tool_choice", "Tool choice is none, but model called a tool"])
async def test_a_provider_that_cannot_forbid_calls_is_offered_no_tools_for_a_last_answer(
    provider: Provider, client: OpenAIChatClient, words: str
) -> None:
    provider.scripts.insert(0, refusal(400, {"error": {"message": words}}))
    for answer_only in (True, True, False):
        assert await ask(client, ChatRequest(REQUEST.messages, TURN, (TOOL,), answer_only)) == HELLO_EVENTS
    assert [("tools" in each, "tool_choice" in each) for each in provider.requests] == [
        (True, True),
        (False, False),
        (False, False),
        (True, False),
    ]


async def test_a_local_server_needs_no_key(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, None, "model", extra_body={"temperature": 0}, headers={"x-app": "1"})
    assert await ask(client) == HELLO_EVENTS
    assert provider.requests[0]["temperature"] == 0
    assert "x-app: 1" in provider.heads[0]
    await client.aclose()


def test_neither_key_nor_url_is_a_mistake_in_the_settings() -> None:
    with pytest.raises(ConfigurationError, match="OPENAI_API_KEY"):
        OpenAIChatClient(None, None, "model")


async def test_a_provider_that_does_not_know_stream_options_is_asked_without_from_then_on(
    provider: Provider, client: OpenAIChatClient
) -> None:
    complaint = refusal(400, {"error": {"message": "Unrecognized request argument supplied: stream_options"}})
    provider.scripts.insert(0, complaint)
    assert await ask(client) == HELLO_EVENTS
    assert await ask(client) == HELLO_EVENTS
    assert ["stream_options" in request for request in provider.requests] == [True, False, False]


async def test_a_provider_that_does_not_take_its_reasoning_back_is_asked_without_from_then_on(
    provider: Provider, client: OpenAIChatClient
) -> None:
    call = ToolCall("a", "correlation", "clock__now", "{}")
    history = (*REQUEST.messages, AssistantMessage("", (call,), "hm"), ToolMessage("a", "clock__now", "noon"))
    provider.scripts.insert(0, refusal(400, {"error": {"message": "property 'reasoning_content' is unsupported"}}))
    for _ in range(2):
        assert await ask(client, ChatRequest(history, TURN)) == HELLO_EVENTS
    sent = [request["messages"][1] for request in provider.requests]
    assert ["reasoning_content" in message for message in sent] == [True, False, False]
    assert all("stream_options" in request for request in provider.requests)


async def test_reasoning_in_blocks_goes_back_to_the_model_that_made_it(provider: Provider) -> None:
    block = {"type": "reasoning.encrypted", "data": "c2ln", "index": 0}
    call = {"index": 0, "id": "a", "function": {"name": "clock__now", "arguments": "{}"}}
    provider.scripts.insert(
        0, answer(sse({"choices": [{"delta": {"reasoning_details": [block], "tool_calls": [call]}}]}) + DONE)
    )
    one, another = (
        OpenAIChatClient(provider.url, KEY, model, max_retries=0, profile=PROFILES["openrouter"])
        for model in ("one", "another")
    )
    async with aclosing(one), aclosing(another):
        [asked, _] = await ask(one)
        assert isinstance(asked, ToolCallEvent)
        calls = (ToolCall("a", "correlation", asked.name, asked.arguments, asked.extra),)
        history = (*REQUEST.messages, AssistantMessage("", calls), ToolMessage("a", "clock__now", "noon"))
        for client in (one, another):
            await ask(client, ChatRequest(history, TURN))

    _, same, other = (request["messages"] for request in provider.requests)
    assert same[1]["reasoning_details"] == [block]
    assert "reasoning_details" not in other[1]


async def test_a_stop_sequence_is_sent_and_left_out_where_it_is_refused(
    provider: Provider, client: OpenAIChatClient
) -> None:
    request = ChatRequest(REQUEST.messages, TURN, stop=("</tool_use>",))
    complaint = refusal(400, {"error": {"message": "Unsupported parameter: 'stop' is not supported with this model."}})
    provider.scripts = [answer(HELLO), complaint, answer(HELLO)]
    for asked in (request, request, request, REQUEST):
        assert [event async for event in client.stream_chat(asked)] == HELLO_EVENTS
    sent = [body.get("stop") for body in provider.requests]
    assert sent == [["</tool_use>"], ["</tool_use>"], None, None, None]


async def test_an_option_is_kept_if_doing_without_it_does_not_help(
    provider: Provider, client: OpenAIChatClient
) -> None:
    complaint = refusal(400, {"error": {"message": "stream_options is set, and I never answer"}})
    provider.scripts = [complaint, complaint, answer(HELLO)]
    with pytest.raises(LLMRequestError):
        await ask(client)
    assert await ask(client) == HELLO_EVENTS
    assert ["stream_options" in request for request in provider.requests] == [True, False, True]


async def test_another_complaint_is_not_asked_again(provider: Provider, client: OpenAIChatClient) -> None:
    """Nor is one that has the name of an option in it which was not sent."""
    provider.scripts = [refusal(400, {"error": {"message": "too long, stopped reading"}})]
    with pytest.raises(LLMRequestError, match="too long"):
        await ask(client)
    assert len(provider.requests) == 1


# --- How an answer comes ---------------------------------------------------------------------------------------------


async def test_text_arrives_before_the_answer_ends(provider: Provider, client: OpenAIChatClient) -> None:
    seen = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(text("Hel"))
        await seen.wait()
        await exchange.send(text("lo", "stop") + DONE)
        await exchange.end()

    provider.scripts = [script]
    events: list[LLMEvent] = []
    async for event in client.stream_chat(REQUEST):
        events.append(event)
        seen.set()
    assert events == [TextDelta("Hel"), TextDelta("lo"), StreamEnd(FinishReason.STOP)]


async def test_tokens_that_arrive_together_are_one_event(provider: Provider, client: OpenAIChatClient) -> None:
    async def many(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send_at_once(*(text(f"{n} ") for n in range(100)), text("", "stop"), DONE)
        await exchange.end()

    provider.scripts = [many]
    assert await ask(client) == [TextDelta("".join(f"{n} " for n in range(100))), StreamEnd(FinishReason.STOP)]


async def test_an_answer_of_calls_alone_is_no_error(provider: Provider, client: OpenAIChatClient) -> None:
    start = {"index": 0, "id": "a", "function": {"name": "clock__now", "arguments": ""}}
    provider.scripts = [
        answer(
            sse({"choices": [{"delta": {"tool_calls": [start]}}]}),
            sse({"choices": [{"delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}}]}),
            sse({"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}),
            sse({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3}}) + DONE,
        )
    ]
    assert await ask(client) == [
        ToolCallEvent("a", "clock__now", "{}"),
        StreamEnd(FinishReason.TOOL_CALLS, Usage(5, 3)),
    ]


@pytest.mark.parametrize(
    "stream",
    [
        HELLO.replace(b"\n", b"\r\n"),
        HELLO.replace(b"\n", b"\r"),
        HELLO.replace(b": ", b":"),
        HELLO.removesuffix(b"\n\n"),
        HELLO.removesuffix(DONE),
        HELLO.replace(b"data: [DONE]", b": ping\n\ndata: [DONE]"),
    ],
)
async def test_a_stream_may_be_written_and_cut_in_any_way(
    provider: Provider, client: OpenAIChatClient, stream: bytes
) -> None:
    provider.scripts = [answer(*(stream[at : at + 7] for at in range(0, len(stream), 7)))]
    events = await ask(client)
    assert joined(events) == "Hello"
    assert events[-1] == StreamEnd(FinishReason.STOP)


async def test_an_answer_that_is_not_streamed_is_read_all_the_same(
    provider: Provider, client: OpenAIChatClient
) -> None:
    message = {"role": "assistant", "content": "Hello"}
    usage = {"prompt_tokens": 5, "completion_tokens": 3}
    body = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
    provider.scripts = [answer(json.dumps(body, indent=1).encode(), content_type="application/json")]
    assert await ask(client) == [TextDelta("Hello"), StreamEnd(FinishReason.STOP, Usage(5, 3))]


async def test_a_connection_is_used_again(provider: Provider, client: OpenAIChatClient) -> None:
    for _ in range(3):
        assert await ask(client) == HELLO_EVENTS
    assert (provider.connections, len(provider.requests)) == (1, 3)


async def test_a_provider_that_keeps_the_stream_open_after_done_does_not_hold_the_answer(
    provider: Provider, client: OpenAIChatClient
) -> None:
    closed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(HELLO)
        await exchange.until_closed()
        closed.set()

    provider.scripts = [script]
    assert await ask(client) == HELLO_EVENTS
    await asyncio.wait_for(closed.wait(), 5)


# --- How an answer is stopped ----------------------------------------------------------------------------------------


async def test_closing_the_generator_closes_the_stream_at_the_provider(
    provider: Provider, client: OpenAIChatClient
) -> None:
    closed = asyncio.Event()
    provider.scripts = [endless(closed)]
    async with aclosing(client.stream_chat(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
    await asyncio.wait_for(closed.wait(), 5)


async def test_cancelling_the_reader_closes_the_stream_at_the_provider(
    provider: Provider, client: OpenAIChatClient
) -> None:
    closed, seen = asyncio.Event(), asyncio.Event()
    provider.scripts = [endless(closed)]

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


async def test_cancelling_before_the_first_byte_closes_the_request(
    provider: Provider, client: OpenAIChatClient
) -> None:
    asked, closed = asyncio.Event(), asyncio.Event()

    async def script(exchange: Exchange) -> None:
        asked.set()
        await exchange.until_closed()
        closed.set()

    provider.scripts = [script]
    reader = asyncio.create_task(ask(client))
    await asyncio.wait_for(asked.wait(), 5)
    reader.cancel()
    await asyncio.wait_for(closed.wait(), 5)
    with pytest.raises(asyncio.CancelledError):
        await reader


def endless(closed: asyncio.Event) -> Script:
    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(text("Hel"))
        await exchange.until_closed()
        closed.set()

    return script


# --- How it fails ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, LLMRequestError),
        (401, LLMAuthenticationError),
        (402, LLMQuotaError),
        (403, LLMAuthenticationError),
        (404, LLMRequestError),
        (408, LLMUnavailableError),
        (422, LLMRequestError),
        (429, LLMRateLimitedError),
        (500, LLMUnavailableError),
        (503, LLMOverloadedError),
    ],
)
async def test_a_status_gets_its_name_and_keeps_the_providers_words(
    provider: Provider, client: OpenAIChatClient, status: int, kind: type[LLMError]
) -> None:
    provider.scripts = [refusal(status, {"error": {"message": f"because of {KEY} " + "x" * 1000}})]
    with pytest.raises(LLMError) as caught:
        await ask(client)
    assert type(caught.value) is kind
    assert "because of ***" in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(str(caught.value)) < 600


async def test_an_error_page_is_not_repeated_to_the_user(provider: Provider, client: OpenAIChatClient) -> None:
    provider.scripts = [answer(b"<html>Bad gateway</html>", status=502, content_type="text/html")]
    with pytest.raises(LLMUnavailableError) as caught:
        await ask(client)
    assert "html" not in str(caught.value)


async def test_a_web_page_instead_of_a_stream_is_a_wrong_url(provider: Provider, client: OpenAIChatClient) -> None:
    provider.scripts = [answer(b"<html>Welcome</html>", content_type="text/html")]
    with pytest.raises(LLMRequestError, match="base URL"):
        await ask(client)


async def test_before_the_first_byte_it_is_tried_again(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=2)
    provider.scripts = [refusal(503), refusal(429), answer(HELLO)]
    assert await ask(client) == HELLO_EVENTS
    assert len(provider.requests) == 3
    await client.aclose()


async def test_a_provider_that_says_to_come_back_in_an_hour_is_not_waited_for(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=2)
    provider.scripts = [answer(b"{}", status=429, content_type="application/json", retry_after="100")]
    with pytest.raises(LLMRateLimitedError, match="in 100 seconds"):
        await ask(client)
    assert len(provider.requests) == 1
    await client.aclose()


async def test_after_the_first_byte_it_is_not_tried_again(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=2)
    provider.scripts = [answer(text("Hel"), cut=True), answer(HELLO)]
    with pytest.raises(LLMStreamBrokenError):
        await ask(client)
    assert len(provider.requests) == 1
    await client.aclose()


@pytest.mark.parametrize("cut", [True, False], ids=["connection broken", "response ended"])
async def test_a_stream_that_breaks_off_is_an_error_after_its_text(
    provider: Provider, client: OpenAIChatClient, cut: bool
) -> None:
    provider.scripts = [answer(text("Hel"), b"data: {", cut=cut)]
    async with aclosing(client.stream_chat(REQUEST)) as events:
        assert await anext(events) == TextDelta("Hel")
        with pytest.raises(LLMStreamBrokenError):
            await anext(events)


async def test_a_connection_that_breaks_after_the_finish_reason_does_no_harm(
    provider: Provider, client: OpenAIChatClient
) -> None:
    provider.scripts = [answer(text("Hello", "stop"), cut=True)]
    assert await ask(client) == HELLO_EVENTS


async def test_an_error_inside_the_stream_gets_its_name(provider: Provider, client: OpenAIChatClient) -> None:
    provider.scripts = [answer(text("Hel"), sse({"error": {"code": 429, "message": f"slow down, {KEY}"}}))]
    with pytest.raises(LLMRateLimitedError, match=r"slow down, \*\*\*"):
        await ask(client)


async def test_an_answer_of_nothing_is_an_error(provider: Provider, client: OpenAIChatClient) -> None:
    provider.scripts = [answer(text("", "stop") + DONE)]
    with pytest.raises(LLMStreamEmptyError):
        await ask(client)


async def test_a_provider_that_does_not_begin_is_given_up(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(first_token=0.05))
    provider.scripts = [Exchange.until_closed]
    with pytest.raises(LLMUnavailableError, match="in time"):
        await ask(client)
    await client.aclose()


async def test_a_provider_that_falls_silent_is_given_up(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(silence=0.2))
    provider.scripts = [endless(asyncio.Event())]
    with pytest.raises(LLMStreamBrokenError, match="fell silent"):
        await ask(client)
    await client.aclose()


PING = b": still working\n\n"
ROLE = sse({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
CALL = sse({"choices": [{"delta": {"tool_calls": [{"index": 0, "id": "a", "function": {"name": "f"}}]}}]})


def and_then_pings(*reads: bytes) -> Script:
    """A provider that sends these and then keeps the connection open with comments, for as long as it is let."""

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        for read in reads:
            await exchange.send(read)
        gone = asyncio.create_task(exchange.until_closed())
        while not gone.done():
            await exchange.send(PING)
            await asyncio.wait([gone], timeout=0.01)
        await gone

    return script


@pytest.mark.parametrize("first", [PING, ROLE], ids=["comments only", "a role and comments"])
async def test_what_only_keeps_the_connection_open_is_no_beginning(provider: Provider, first: bytes) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(first_token=0.3, silence=30))
    provider.scripts = [and_then_pings(first)]
    with pytest.raises(LLMUnavailableError, match=r"in time: nothing came for 0\.3 seconds"):
        await ask(client)
    await client.aclose()


@pytest.mark.parametrize("first", [text("Hel"), CALL], ids=["text", "a call"])
async def test_what_only_keeps_the_connection_open_is_silence(provider: Provider, first: bytes) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(first_token=30, silence=0.3))
    provider.scripts = [and_then_pings(first)]
    with pytest.raises(LLMStreamBrokenError, match=r"fell silent for 0\.3 seconds"):
        await ask(client)
    await client.aclose()


async def test_a_long_wait_for_the_first_token_is_no_silence(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(first_token=30, silence=0.05))

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(ROLE)
        await asyncio.sleep(0.2)  # the model thinks
        await exchange.send(HELLO)
        await exchange.end()

    provider.scripts = [script]
    assert await ask(client) == HELLO_EVENTS
    await client.aclose()


async def test_a_long_call_is_no_silence_although_nothing_of_it_is_shown(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(first_token=1, silence=1))

    async def script(exchange: Exchange) -> None:
        await exchange.start()
        await exchange.send(CALL)
        for piece in ['{"x": "', *"abcdefghijklmno", '"}']:
            fragment = {"index": 0, "function": {"arguments": piece}}
            await asyncio.sleep(0.1)  # it writes
            await exchange.send(sse({"choices": [{"delta": {"tool_calls": [fragment]}}]}))
        await exchange.send(DONE)
        await exchange.end()

    provider.scripts = [script]
    call, _ = await ask(client)
    assert call == ToolCallEvent("a", "f", '{"x": "abcdefghijklmno"}')
    await client.aclose()


async def test_silence_after_the_finish_reason_does_no_harm(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=0, waits=Waits(silence=0.1))
    provider.scripts = [and_then_pings(text("Hello", "stop"))]
    assert await ask(client) == HELLO_EVENTS
    await client.aclose()


async def test_retries_do_not_prolong_the_wait_for_the_first_token(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url, KEY, "model", max_retries=1_000_000, waits=Waits(first_token=0.3))
    provider.scripts = [refusal(503)]
    with pytest.raises(LLMUnavailableError, match="in time"):
        await ask(client)
    await client.aclose()


async def test_nobody_at_the_address_is_unavailable(unused_tcp_url: str) -> None:
    client = OpenAIChatClient(unused_tcp_url, KEY, "model", max_retries=0)
    with pytest.raises(LLMUnavailableError) as caught:
        await ask(client)
    assert "hunter2" not in str(caught.value)
    await client.aclose()


async def test_credentials_in_the_url_go_into_the_header(provider: Provider) -> None:
    client = OpenAIChatClient(provider.url.replace("http://", "http://user:hunter2@"), KEY, "model", max_retries=0)
    assert await ask(client) == HELLO_EVENTS
    assert f"authorization: basic {b64encode(b'user:hunter2').decode()}".lower() in provider.heads[0]
    await client.aclose()


@pytest.fixture
async def unused_tcp_url() -> str:
    async with await asyncio.start_server(Provider(answer(HELLO)).connected, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
    return f"http://user:{KEY}@127.0.0.1:{port}/v1"
