"""Answers of providers, byte by byte: whatever they send, a reply or an LLMError comes of it, in bounded time.

The bytes are read by the decoders alone, cut in several ways, and now and then by the whole client over a connection.
"""

from base64 import b64encode
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from random import Random
from struct import pack
from typing import cast
from zlib import crc32

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dialog_engine.errors import LLMError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.bedrock import EventStreamParser
from dialog_engine.llm.decoding import Decoder, merged
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.llm.provider import Timeouts
from dialog_engine.model import ChatEvent, ChatRequest, LLMEvent, StreamEnd, ToolCallEvent, Turn, UserMessage
from tests.fuzz.limits import CONNECTED, FUZZ, TIMES, Attempt, processor_time, watched
from tests.fuzz.mutations import changed_bytes, changed_json, in_reads, written
from tests.marks import promise
from tests.support.corpus import files_of, read_stream
from tests.support.llm_clients import AnthropicModel, OpenAIModel
from tests.support.scripted_provider import SSE, CutError, Exchange, Provider, serving

OPENAI = [case.chunks for case in map(read_stream, files_of("streams")) if case.chunks]
ANTHROPIC = [case.chunks for case in map(read_stream, files_of("anthropic")) if case.chunks]
DECODERS: dict[str, Callable[[], Decoder]] = {
    "openai": lambda: OpenAIDecoder(ErrorClassifier(), "model"),
    "anthropic": lambda: AnthropicDecoder("model", ErrorClassifier()),
    "bedrock": lambda: AnthropicDecoder("model", ErrorClassifier(), EventStreamParser()),
}
PIECES = (
    *(b"data: [DONE]\n\n", b"data: {}\n\n", b"data: null\n\n", b"data: [1]\n\n", b"data:\n\n", b"event: error\n"),
    *(b": ping\n\n", b"id: 1\n", b"\xef\xbb\xbf", b"\xff\xfe", b"\n\n", b"\r", b'data: {"error": "overloaded"}\n\n'),
    *(b'data: {"choices": [{"delta": {"content": "', b'"}}]}\n\n', b"data: " + b"[" * 100_000 + b"\n\n"),
    b'data: {"choices": [{"delta": {"content": "' + b"a" * 2_000_000 + b'"}}]}\n\n',
    b"".join(
        b'data: {"choices": [{"delta": {"tool_calls": [{"index": %d, "function": {"name": "f"}}]}}]}\n\n' % n
        for n in range(500)
    ),
)
REQUEST = ChatRequest((UserMessage("Hi"),), Turn("turn", "session", "subject"))
KINDS = (SSE, SSE, SSE, "application/json", "text/html", "text/plain", "application/vnd.amazon.eventstream", "")


@promise("hostile input of any side gives a named error, and others are served")
@settings(FUZZ, max_examples=100 * TIMES)
@given(st.randoms(use_true_random=True))
def test_whatever_a_provider_sends_a_reply_or_an_error_comes_of_it_however_it_is_cut(random: Random) -> None:
    with processor_time():
        decode(random)


@settings(CONNECTED, max_examples=3 * TIMES)
@given(random=st.randoms(use_true_random=True))
async def test_the_whole_client_has_a_reply_or_an_error_too(provider: Attempt, random: Random) -> None:
    async with watched():
        await provider(random)


def decode(random: Random) -> None:
    """An answer to each decoder. Raises if what comes of it depends on the pieces, or cannot be stored."""
    for name, decoder in DECODERS.items():
        body = _body(name, random)
        _however_it_is_cut(decoder, body, random)
        _as_a_document(decoder(), body)


@pytest.fixture(scope="module")
async def provider() -> AsyncGenerator[Attempt]:
    """The clients of both protocols in front of a provider."""
    provider = Provider()
    timeouts = Timeouts(connect=2.0, first_token=3.0, silence=1.0)
    async with serving(provider) as address:
        clients = [
            OpenAIModel(address.url, "a key", "model", timeouts=timeouts, max_retries=0),
            AnthropicModel(address.url, "a key", "model", timeouts=timeouts, max_retries=0),
        ]

        async def attempt(random: Random) -> None:
            provider.scripts = [_script(random)]
            await _through(random.choice(clients))

        try:
            yield attempt
        finally:
            for client in clients:
                await client.aclose()


def _body(name: str, random: Random) -> bytes:
    chunks: Sequence[object]
    chunks = random.choice(OPENAI if name == "openai" else ANTHROPIC)
    if random.random() < 0.1:
        chunks = [*chunks, *random.choice(random.choice([OPENAI, ANTHROPIC]))]
    for _ in range(random.choice([0, 1, 1, 1, 2, 3])):
        changed = changed_json(chunks, random)
        chunks = cast("list[object]", changed) if isinstance(changed, list) else [changed]
    if name == "bedrock":
        body = b"".join(_event_stream_message(written(chunk, random), random) for chunk in chunks)
    else:
        body = b"".join(b"data: %b\n\n" % written(chunk, random) for chunk in chunks)
        body += random.choice([b"data: [DONE]\n\n", b"data: [DONE]", b"", b"data: {"])
    for _ in range(random.choice([0, 0, 0, 0, 1, 3])):
        body = changed_bytes(body, random, PIECES)
    return body


def _event_stream_message(payload: bytes, random: Random) -> bytes:
    """A message of AWS's event stream; its checksums are right, so that its payload is read."""
    if random.random() < 0.9:
        payload = b'{"bytes": "%b"}' % b64encode(payload)
    headers = random.choice([b"", b"\x0b:event-type\x07\x00\x05chunk", b"\x0f:exception-type\x07\x00\x01x", b"\x05a"])
    prelude = pack(">II", len(headers) + len(payload) + 16, len(headers))
    message = prelude + pack(">I", crc32(prelude)) + headers + payload
    return message + pack(">I", crc32(message))


def _however_it_is_cut(make: Callable[[], Decoder], body: bytes, random: Random) -> None:
    """The pieces in which an answer comes make no difference."""
    whole = _outcome(make(), [body])
    assert _outcome(make(), in_reads(body, random)) == whole, body[:1000]


def _outcome(decoder: Decoder, reads: Sequence[bytes]) -> object:
    """The events, with the ids of calls left out, which are minted; or the error, as text."""
    events: list[LLMEvent] = []
    try:
        for read in reads:
            if not decoder.done:
                events += decoder.feed(read)
        events += decoder.finish()
    except LLMError as error:
        return f"{type(error).__name__}: {error}"
    _check(events)
    return [(e.name, e.arguments, e.problem) if isinstance(e, ToolCallEvent) else e for e in merged(events)]


def _as_a_document(decoder: Decoder, body: bytes) -> None:
    """A gateway that does not stream sends such bytes as one document."""
    try:
        events = decoder.feed_whole(body) + decoder.finish()
    except LLMError:
        return
    _check(events)


def _check(events: Sequence[ChatEvent]) -> None:
    """A whole reply ends once, and all of it can be stored and sent."""
    assert [isinstance(event, StreamEnd) for event in events].index(True) == len(events) - 1
    msgspec.json.encode(events)
    assert all(event.name and event.tool_call_id for event in events if isinstance(event, ToolCallEvent))


def _script(random: Random) -> Callable[[Exchange], Awaitable[None]]:
    name = random.choice(["openai", "anthropic"])
    reads = in_reads(_body(name, random), random)
    status = random.choice([200, 200, 200, 200, 201, 204, 299, 302, 400, 401, 404, 413, 429, 500, 503, 529])
    kind, cut, noise = random.choice(KINDS), random.random() < 0.2, random.random() < 0.1
    encoding = {"content-encoding": random.choice(["gzip", "br", "identity", "x"])} if random.random() < 0.1 else {}
    raw = random.randbytes(random.randint(1, 200))

    async def script(exchange: Exchange) -> None:
        if noise:
            await exchange.raw(raw)
            raise CutError
        await exchange.start(status, kind, location="http://127.0.0.1:9/", retry_after="1", **encoding)
        for read in reads:
            await exchange.send(read)
        if cut:
            raise CutError
        await exchange.end()

    return script


async def _through(client: OpenAIModel | AnthropicModel) -> None:
    try:
        async with aclosing(await client.open(REQUEST)) as stream:
            events = [event async for event in stream]
    except LLMError as error:
        if "a key" in str(error):
            raise
        return
    _check(events)
