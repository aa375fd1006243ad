"""Event streams come apart the same way wherever the network cuts them."""

from collections.abc import Callable

import pytest

from dialog_engine.errors import LLMStreamBrokenError
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.decoding import MAX_LINES, MAX_VALUES, Decoder, SSEParser
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.openai_decoding import OpenAIDecoder
from dialog_engine.model import LLMEvent, StreamEnd, Usage


def parse(*reads: bytes) -> list[bytes]:
    parser = SSEParser()
    payloads = [payload for read in reads for payload in parser.feed(read)]
    return payloads + parser.finish()


@pytest.mark.parametrize(
    ("stream", "payloads"),
    [
        (b"data: a\n\ndata: b\n\n", [b"a", b"b"]),
        (b"data: a\r\n\r\ndata: b\r\n\r\n", [b"a", b"b"]),
        (b"data: a\r\rdata: b\r\r", [b"a", b"b"]),
        (b"\xef\xbb\xbfdata: a\rdata: b\r\n\rdata:c\n\r\n: ping\n\rdata\r\n\n", [b"a\nb", b"c", b""]),
        (b"data:[DONE]\n\n", [b"[DONE]"]),
        (b"data:  two\n\n", [b" two"]),
        (b"data: one\ndata: two\n\n", [b"one\ntwo"]),
        (b"data: one\r\ndata: two\r\n\r\n", [b"one\ntwo"]),
        (b": ping\n\ndata: a\n:\n\n", [b"a"]),
        (b"\xef\xbb\xbfdata: a\n\n", [b"a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [b"a"]),
        (b"event: message\nid: 7\nretry: 5\ndata: a\n\n", [b"a"]),
        (b"data\n\n", [b""]),
        (b"database: a\n\ndatum\n\n", []),
        (b"\n\n\n", []),
        (b"", []),
        (b"data: a\n\ndata: cut off", [b"a", b"cut off"]),
        (b"data: a\n", [b"a"]),
        (b'{"error": "busy"}', [b'{"error": "busy"}']),
        (b'\xef\xbb\xbf{\r\n  "error": "busy"\r\n}\r\n\r\n', [b'{\n  "error": "busy"\n}']),
        (b'data: a\n\n{"error": "busy"}\n\n', [b"a"]),
        ("data: é\u2028\x0b\x0c\x85\n\n".encode(), ["é\u2028\x0b\x0c\x85".encode()]),
    ],
)
def test_a_stream_is_read_whole_and_byte_by_byte(stream: bytes, payloads: list[bytes]) -> None:
    assert parse(stream) == payloads
    assert parse(*(stream[at : at + 1] for at in range(len(stream)))) == payloads
    for at in range(len(stream) + 1):
        assert parse(stream[:at], b"", stream[at:]) == payloads


def test_a_payload_is_there_with_the_byte_that_ends_it() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\r\n\r") == [b"a"]
    assert parser.feed(b"\ndata: b\n") == []
    assert parser.feed(b"\n") == [b"b"]


def anthropic() -> Decoder:
    return AnthropicDecoder("model", ErrorClassifier(), SSEParser())


def decoded(decoder: Decoder, reads: list[bytes]) -> list[LLMEvent]:
    return [*(event for read in reads for event in decoder.feed(read)), *decoder.finish()]


@pytest.mark.parametrize(
    "reads",
    [[b'data: {"choices":[' + b"{}," * MAX_VALUES + b"{}]}\n\n"], [b"data: 1\n" * (MAX_LINES + 1), b"data: 1\n\n"]],
)
def test_a_message_of_too_many_values_or_lines_is_not_read(reads: list[bytes]) -> None:
    decoder = OpenAIDecoder(ErrorClassifier())
    with pytest.raises(LLMStreamBrokenError, match="more than 100,000"):
        decoded(decoder, reads)


@pytest.mark.parametrize(
    ("decoder", "end"),
    [
        (lambda: OpenAIDecoder(ErrorClassifier()), '{"choices":[{"finish_reason":"stop"}],"usage":{"%s":%s,"%s":7}}'),
        (anthropic, '{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"%s":%s,"%s":7}}'),
    ],
)
@pytest.mark.parametrize("count", ["-5", "9223372036854775808", "9" * 400, "1e300", "true", '"8"'])
def test_a_number_of_tokens_that_cannot_be_true_counts_as_absent(
    decoder: Callable[[], Decoder], end: str, count: str
) -> None:
    names = ("prompt_tokens", "completion_tokens") if "choices" in end else ("input_tokens", "output_tokens")
    reader = decoder()
    reader.feed(b"data: " + (end % (names[0], count, names[1])).encode() + b"\n\n")
    reader.feed(b"data: [DONE]\n\n")
    assert [event.usage for event in reader.finish() if isinstance(event, StreamEnd)] == [Usage(0, 7)]
