"""Whatever reads a text of a model, a tool, a server or a user takes time proportional to its length.

READERS has each such function with texts made to be slow for it. A module that parses text is in MODULES, with its
readers or with the reason why it has none.
"""

import ast
import gc
import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from mcp.types import CallToolResult, Tool
from pydantic import ValidationError

from callstream_runtime.long_texts import LOOP_CHARACTERS
from callstream_runtime.visible import visible
from dialog_engine.chat.events import Frame
from dialog_engine.chat.resent import bare, normalised
from dialog_engine.context import fit, newest_turns
from dialog_engine.facades.ai_sdk.encoder import AiSdkEncoder
from dialog_engine.facades.ai_sdk.request import PostedChat, question_of, read_chat
from dialog_engine.facades.chat_completions.request import read_request
from dialog_engine.facades.conversations.request import read_added, read_described
from dialog_engine.facades.large_bodies import MAX_BYTES as MAX_BODY
from dialog_engine.facades.responses.request import read_request as read_response_request
from dialog_engine.http.bodies import unicode_text
from dialog_engine.http.requests import MAX_BODY_BYTES
from dialog_engine.llm.anthropic_decoding import AnthropicDecoder
from dialog_engine.llm.anthropic_encoding import encode_messages as encode_for_anthropic
from dialog_engine.llm.decoding import is_complete
from dialog_engine.llm.error_classification import ErrorClassifier
from dialog_engine.llm.lenient_json import ArgumentsScan, decode, join_arguments
from dialog_engine.llm.openai_client import encode_messages as encode_for_openai
from dialog_engine.llm.openai_decoding import MessageAssembler, OpenAIDecoder
from dialog_engine.llm.openai_wire import CallDelta, Choice, Chunk, Delta, FunctionDelta
from dialog_engine.llm.profiles import Profile
from dialog_engine.model import (
    AssistantMessage,
    ChatRequest,
    FinishReason,
    Message,
    StreamEnd,
    SystemMessage,
    TextDelta,
    ToolCall,
    ToolMessage,
    Turn,
    UserMessage,
    storable_json,
)
from dialog_engine.operators.logs import lines_about
from dialog_engine.tool_calls.arguments import MAX_CHARACTERS, read_arguments
from dialog_engine.tool_calls.exposure.descriptions import purpose, signature, similar_names
from dialog_engine.tool_calls.exposure.quarantine import refused_tool
from dialog_engine.tool_calls.exposure.search import Ranking, names_in, without, words
from dialog_engine.tool_calls.normalise import normalise, plain_name
from dialog_engine.tool_calls.planning import find_repeats
from dialog_engine.tool_calls.prompt_mode.dialect import Dialect, escape_tags
from dialog_engine.tool_calls.prompt_mode.function_calls import FUNCTION_CALLS
from dialog_engine.tool_calls.prompt_mode.tagged_reply import TaggedReply
from dialog_engine.tool_calls.prompt_mode.tool_use import TOOL_USE
from dialog_engine.tool_calls.prompt_mode.values import as_object, trimmed
from dialog_engine.tool_calls.results.read_result import found, page
from dialog_engine.tool_calls.results.texts import shorten, storable_outcome
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_mcp.mcp.content import MAX_ANSWER_BYTES, bound_blocks, size_of, to_outcome
from plugins_mcp.mcp.dispatcher import parse_line
from plugins_mcp.mcp.error_classification import HttpAnswer, classify_response
from plugins_mcp.mcp.listing import Listing, bound_page, remove_malformed_tools, to_catalog
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.stdio import ChildDiagnostics
from plugins_mcp.mcp.transport_options import Stdio
from tests.support.fakes.worker import tool
from tests.support.loop_probe.sitecustomize import slowness
from tests.support.tags import KNOWN, TOOLS

Text = Callable[[int], Any]
"""Makes the input of a reader: about so many characters, or so many parts of an input that is not one text."""

MAX_REPLY = 4_000_000
MAX_RESULT = 1_048_576
MEASURED_SECONDS = 0.02
"""Up to which time a text is made longer. A reader that is quadratic shows it long before its limit."""
MEASURED_IN_PIECES = 0.06
"""The same for what comes in pieces: to look at all earlier ones again costs little as long as they are few."""
SHORT_SECONDS = 0.015
"""A shorter time counts as this one: it is too short to be compared."""
MOST_TIMES = 3.0
MOST_LOOKS = 30
"""How often both texts are read before it is believed that the longer one takes too long."""
LOOP_SECONDS = 0.05
SECONDS_PER_CHARACTER, SECONDS_PER_PART = 20e-6, 400e-6


def made(text: "str | tuple[str, ...] | Text") -> Text:
    """Of a text: again and again; of several the first one so, after the second and before the third."""
    if callable(text):
        return text
    part, before, after = (*([text] if isinstance(text, str) else text), "", "")[:3]
    return lambda size: (before + part * (size // len(part) + 1))[:size] + after


def _reply(dialect: Dialect, piece: int | None = None) -> Callable[[str], None]:
    def read(text: str) -> None:
        ids = count()
        reply = TaggedReply(dialect.grammar(TOOLS), KNOWN, lambda: str(next(ids)), may_quote_results=True)
        for at in range(0, len(text), piece or len(text)):
            reply.read(TextDelta(text[at : at + (piece or len(text))]))
        reply.read(StreamEnd(FinishReason.STOP))
        reply.end()

    return read


_TOOL_USE = (
    "<",
    "<tool_use><name>",
    '<tool_use a="',
    "<tool_response>",
    "`<",
    "``<!--<",
    "> 1. `\n    - - - <",
    '<tool_call>{"name":"add","arguments":{}}</tool_call>',
    ('<tool_call>{"name":"add"}</tool_call>', '<tool_call>{"name":"add","arguments":{"a":"'),
    ("&lt;", "<tool_use><name>add</name><arguments>{", "</arguments></tool_use>"),
    ("<![CDATA[a]]>", "<tool_use><name>add</name><arguments>", "</arguments></tool_use>"),
    ("<", "<think>"),
    "<p>a < b</p> ",
    "say `<tool_use> ",
    ("a\n    <tool_use> <!-- --> ``b", "`"),
    ('"a", ', "<tool_use><name>write</name><arguments>"),
    '<tool_use><name>now</name><arguments>{"a: 1}</arguments></tool_use>\n',
    "<tool_use_result><name>now</name><result>a < b</result>",
    ("a < b </", "<tool_use_result><result>"),
    "<tool_use_result>\n",
)
_FUNCTION_CALLS = (
    '<invoke name="add"><parameter name="a">1</parameter></invoke>',
    ('<parameter name="a">1</parameter>', '<invoke name="add">'),
    ('a="1" ', '<invoke name="add" '),
    "<invoke a='",
    ("a </parameter> b ", '<invoke name="write"><parameter name="path">'),
    (' path="a > b"', '<invoke name="write"'),
    ("a > b ", '<invoke name="write" path="'),
    ("a = ", '<invoke name="write" '),
    (" " * 10, '<invoke name="write"><parameter name="path">a</parameter>'),
    ("</parameter>" + " " * 199, '<invoke name="write"><parameter name="path">'),
)


def _pieces(text: str) -> list[str]:
    return [text[at : at + 3] for at in range(0, len(text), 3)]


def _scan(text: str) -> None:
    scan = ArgumentsScan()
    for piece in _pieces(text):
        scan.add(piece)
        scan.may_be_complete()


def _stream(decoder: OpenAIDecoder | AnthropicDecoder, payloads: Sequence[dict[str, Any]]) -> None:
    for payload in payloads:
        decoder.feed(b"data: " + json.dumps(payload).encode() + b"\n\n")
    decoder.finish()


def _part(arguments: str, name: str | None = None, call_id: str | None = None, index: int | None = 0) -> Delta:
    return Delta(tool_calls=[CallDelta(index, call_id, FunctionDelta(name, arguments))])


_DELTAS: tuple[Callable[[int], list[Delta]], ...] = (
    lambda n: [Delta(reasoning_details=[{"type": "t", "index": at}]) for at in range(n)],
    lambda n: [Delta(reasoning_details=[{"type": "t", "index": 0, "id": at}]) for at in range(1, n)],
    lambda n: [Delta(reasoning_details=[{"type": "t", "index": 0, "text": "a" * 1000}])] * n,
    lambda n: [_part('{"a":"', "t"), *[_part("a}", "t")] * n],
    lambda n: [_part('{"a":"', "t", "0"), *(_part("a}", None, str(at)) for at in range(1, n))],
    lambda n: [_part("{}", "t", str(at), at) for at in range(n)],
    lambda n: [_part("{}", "t", str(at), None) for at in range(n)],
    lambda n: [_part("{}" * 60 * n, "t")],
)


def _assemble(deltas: Sequence[Delta]) -> None:
    assembler = MessageAssembler()
    for delta in deltas:
        assembler.feed(Chunk([Choice(delta)]))
    assembler.finish()


def _anthropic(number: int) -> None:
    events: list[dict[str, Any]] = []
    for index in range(number):
        block: dict[str, Any] = {"type": "tool_use", "id": "same", "name": "a", "input": {}}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": {"partial_json": "{}"}})
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    _stream(AnthropicDecoder("m", ErrorClassifier()), [*events, end])


def _history(number: int) -> tuple[Message, ...]:
    """Calls that all have the same id, as some providers send them."""
    said: list[Message] = [SystemMessage("s"), UserMessage("Go!")]
    for n in range(number):
        said.append(AssistantMessage("", (ToolCall("call_0", f"c{n}", "a__b", '{"a":1}'),)))
        said.append(ToolMessage("call_0", "a__b", "the result"))
    return tuple(said)


def _encode(messages: Sequence[Message]) -> None:
    encode_for_openai(messages, Profile("p"))
    encode_for_anthropic(messages, "m", Profile("p"))


def _catalog(number: int) -> Ranking:
    return Ranking([tool(f"s__t{n}", description=f"word{n} common") for n in range(number)])


def _misspelled(size: int) -> str:
    return " ".join(f"wrod{n}" for n in range(size))[:size]


def _line(size: int) -> bytes:
    return b'{"jsonrpc":"2.0","id":1,"result":{"x":"' + b'\\",' * (size // 3) + b'"}}'


def _outcome(size: int) -> ToolOutcome:
    return ToolOutcome(CallState.SUCCEEDED, tuple(TextBlock("ab") for _ in range(size // 2)))


def _result(size: int) -> CallToolResult:
    content = [{"type": "text", "text": "a" * (size // 100)}] * 100
    return CallToolResult.model_validate({"content": content, "structuredContent": {"result": "b" * (size // 100)}})


def _listed(number: int) -> dict[str, Any]:
    return {"tools": [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(number)]}


def _list(result: dict[str, Any]) -> None:
    result = {"tools": [*result["tools"]]}  # the readers take what is malformed out of it
    bound_page(result)
    malformed = tuple(remove_malformed_tools(result))
    tools = tuple(map(Tool.model_validate, result["tools"]))
    to_catalog(ServerSpec("s", Stdio("echo")), Listing(tools=tools, malformed=malformed))


def _reset(messages: int) -> Frame:
    said = {"event": "message", "data": {"messageId": 1, "role": "assistant", "content": "a" * 4_000}}
    return Frame("2-1", "reset", msgspec.json.encode({"reason": "log_lost", "events": [said] * messages}).decode())


def _children(text: str) -> None:
    child = ChildDiagnostics()
    child.note_other_text(text)


def _completion(messages: list[dict[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages}).encode()


def _response(items: list[dict[str, Any]]) -> bytes:
    question = {"role": "user", "content": "Hi"}
    return json.dumps({"model": "m", "input": [*items, question]}).encode()


def _items(items: list[dict[str, Any]]) -> bytes:
    return json.dumps({"items": items}).encode()


def _chat(*parts: dict[str, Any]) -> bytes:
    return json.dumps({"id": "chat", "messages": [{"id": "1", "role": "user", "parts": parts}]}).encode()


def _parts(kind: str, size: int) -> list[dict[str, Any]]:
    """As many as a body may have values."""
    return [{"type": kind, "text": "a"}] * min(size // 40, 90_000)


def _image_of(size: int) -> str:
    return f"data:image/png;base64,iVBORw0KGgo{'A' * (size // 4 * 4)}="


def _picture(size: int) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": _image_of(size)}}]}


READERS: dict[str, tuple[Callable[[Any], object], int, Sequence[str | tuple[str, ...] | Text]]] = {
    "a reply in tags": (_reply(TOOL_USE), MAX_REPLY, _TOOL_USE),
    "a reply in tags, token by token": (_reply(TOOL_USE, 3), MAX_REPLY, _TOOL_USE),
    "a reply in function tags": (_reply(FUNCTION_CALLS), MAX_REPLY, _FUNCTION_CALLS),
    "a reply in function tags, token by token": (_reply(FUNCTION_CALLS, 3), MAX_REPLY, _FUNCTION_CALLS),
    "an object in a text": (as_object, MAX_CHARACTERS,
        (("<![CDATA[", "{", "}"), "<![CDATA[a]]>", ("\n", "```json\n", "x"), ("\n ", "```", "```"), "&#99999999999;")),
    "a value in tags": (trimmed, MAX_REPLY, ("<![CDATA[]]>", ("<![CDATA[]]>", "", "x"))),
    "escaped tags": (lambda text: escape_tags(text, "result"), MAX_RESULT, ("</", (" ", "</"))),
    "an answer that a client sends again": (bare, MAX_BODY, ('<details type="reasoning"', "</details>", " a")),
    "a question that a client sends again": (normalised, MAX_BODY, (" a", "a\u0301", "\u0301")),
    "a request for a completion": (
        read_request,
        MAX_BODY,
        (
            lambda size: _completion([{"role": "user", "content": "a" * size}]),
            lambda size: _completion([{"role": "user", "content": _parts("text", size)}]),
            lambda size: _completion([_picture(size)]),
        ),
    ),
    "a conversation of the AI SDK": (
        lambda body: question_of(read_chat(body).messages[-1]),
        MAX_BODY,
        (
            lambda size: _chat({"type": "text", "text": "a" * size}),
            lambda size: _chat(*[{"type": "text", "text": "a"}] * min(size // 30, 9_000)),
            lambda size: _chat({"type": "file", "url": _image_of(size)}),
        ),
    ),
    "a request for a response": (
        read_response_request,
        MAX_BODY,
        (
            lambda size: _response([{"role": "user", "content": "a" * size}]),
            lambda size: _response([{"role": "user", "content": _parts("input_text", size)}]),
            lambda size: _response([{"type": "reasoning", "id": "msg_" + "a" * size}]),
        ),
    ),
    "items of a conversation": (
        lambda body: read_added(body, "0" * 32),
        MAX_BODY,
        (
            lambda size: _items([{"role": "user", "content": "a" * size}]),
            lambda size: _items([{"role": "user", "content": _parts("input_text", size)}]),
        ),
    ),
    "metadata of a conversation": (
        read_described,
        MAX_BODY,
        (lambda size: json.dumps({"metadata": None, "a": "a" * size}).encode(),),
    ),
    "arguments": (read_arguments, MAX_CHARACTERS, (('"a",', '{"a":[', '""]}'), "[", "9")),
    "fragments of arguments": (lambda text: join_arguments(_pieces(text)), MAX_REPLY, ("{}", '{"a":1}', "a")),
    "fragments, looked at after each": (_scan, MAX_REPLY, ("{}", '{"a":1}', "\\")),
    "whether arguments are complete": (is_complete, MAX_REPLY, (("{", "", "}"), ("\n", "{}", "}"))),
    "a payload of a provider": (lambda text: decode(text.encode(), msgspec.json.Decoder(Chunk), Chunk), MAX_REPLY,
        (("1,", '{"choices":[', "{}]}"),)),
    "deltas of a provider": (_assemble, 10_000, _DELTAS),
    "calls with one id": (_anthropic, 10_000, (lambda size: size,)),
    "an error of a provider": (lambda text: ErrorClassifier("secret").from_response(400, text, {}), MAX_REPLY,
        ("tool ", "://a", "key_", "sk-")),
    "a refused tool": (lambda text: refused_tool(text, TOOLS), 500, ("tools[1]", "tool 'a")),
    "U+0000": (storable_json, MAX_REPLY, ("\\", "\\u0000", ("\\", "", "\\u0000"))),
    "a name": (plain_name, MAX_REPLY, ("ä",)),
    "a history": (lambda messages: find_repeats(normalise(messages)), 5_000, (_history,)),
    "an encoded history": (_encode, 5_000, (_history,)),
    "what fits": (
        lambda messages: fit(ChatRequest(newest_turns(messages, max_messages=9_999, max_tokens=1e9), TURN), 9_999),
        5_000, (_history,)),
    "the words of a query": (words, MAX_RESULT, ("aB", "s")),
    "a query": (lambda query: SHELF.best(query, 5), 500, (_misspelled, "z", "abcde ")),
    "a catalog that is searched": (lambda shelf: shelf.best("wrod common " * 30, 5), 50_000, (_catalog,)),
    "the answer of a search": (lambda text: (list(names_in(text)), without(text, {"a"})), MAX_RESULT,
        (('{"name":"a","description":', '{"tools":[{'), ('{"name":"', '{"tools":[{'))),
    "a name that no tool has": (lambda names: similar_names("server__serach_notes", names), 20_000,
        (lambda size: [f"server__search_note{n}" for n in range(size)],)),
    "the parameters of a tool in words": (
        lambda text: signature(tool("a", {"properties": {text: {"enum": [text]}}})), 32_768, (". ", "\n")),
    "a tool in words": (lambda text: purpose(tool("a", description=text)), 32_768, (". ", "\n")),
    "a text that is looked for": (lambda text: found(text, "id", "a" * 999 + "b", 0, 16_000), MAX_RESULT,
        ("a", "A", "İ")),
    "a page of a result": (lambda text: page(text, "id", len(text) // 2, 16_000), MAX_RESULT, ("a\n",)),
    "a shortened result": (lambda whole: shorten(storable_outcome(whole), "c" * 36, 1_000), 20_000, (_outcome,)),
    "lines of logs": (lambda text: list(lines_about({"c-1"}, text.split("\n"), "log")), MAX_REPLY,
        ("a-1 | b c-1", ("\x1b[1;", "{c-1"), ('{"c-1":', "engine-1 | "), ("c-1\n", "2026-11-23 05:05:02,185 "))),
    "a line of a log": (visible, MAX_REPLY, ("\x1b", "\u2028a")),
    "a message of an MCP server": (parse_line, MAX_ANSWER_BYTES,
        (_line, lambda size: b'{"jsonrpc":"2.0","id":1,"result":{"content":[' + b'{"a":1},' * (size // 8) + b"1]}}",
        lambda size: b'"a\\' * (size // 3))),
    "the blocks of an answer": (lambda number: bound_blocks({"content": [{}] * number}), MAX_ANSWER_BYTES // 10,
        (lambda size: size,)),
    "the size of an answer": (size_of, MAX_ANSWER_BYTES, (_result,)),
    "an answer": (to_outcome, MAX_ANSWER_BYTES, (_result,)),
    "a list of tools": (_list, 5_000, (_listed, lambda size: {"tools": [{"name": 1}] * size})),
    "an error of an MCP server": (lambda text: classify_response(HttpAnswer(404, {}, text.encode(), in_session=True)),
        MAX_ANSWER_BYTES, ("no session ", "tool ")),
    "a reset, for the AI SDK": (lambda frame: [*AiSdkEncoder(7).feed(frame)], 2_000, (_reset,)),
    "other text of a child": (_children, MAX_ANSWER_BYTES, ("key: ", "://a", "sk-")),
}  # fmt: skip
TURN = Turn("turn", "session", "someone")
SHELF = _catalog(2_000)


PIECEWISE = [read for name, (read, _, _) in READERS.items() if "deltas" in name or "token by token" in name]
CASES = [
    pytest.param(read, most, made(text), id=f"{name}-{number}")
    for name, (read, most, texts) in READERS.items()
    for number, text in enumerate(texts)
]


def seconds(read: Callable[[Any], object], text: Any, times: int) -> float:
    """Processor time of this thread, of the best of so many. A garbage collection would be that of other objects."""
    best = float("inf")
    gc.disable()
    for _ in range(times):
        began = time.thread_time()
        read(text)
        best = min(best, time.thread_time() - began)
    gc.enable()
    return best


@pytest.mark.parametrize(("read", "most", "text"), CASES)
def test_a_text_that_is_twice_as_long_takes_at_most_three_times_as_long(
    read: Callable[[Any], object], most: int, text: Text
) -> None:
    size, measured = 100, MEASURED_IN_PIECES if read in PIECEWISE else MEASURED_SECONDS
    took = seconds(read, text(size), 1)
    while took < measured and 2 * size <= most:
        size, before = 2 * size, took
        took = seconds(read, text(size), 1)
        looks = 0
        while took >= MOST_TIMES * max(before, SHORT_SECONDS) and looks < MOST_LOOKS:  # the machine may be busy
            before, took = min(before, seconds(read, text(size // 2), 1)), min(took, seconds(read, text(size), 1))
            looks += 1
        assert took < MOST_TIMES * max(before, SHORT_SECONDS), f"{size}: {before:.3f} s, then {took:.3f} s"
    most_seconds = SECONDS_PER_CHARACTER if isinstance(text(1), str | bytes) else SECONDS_PER_PART
    assert took < max(size, 1_000) * most_seconds * slowness(), f"{size}: {took:.3f} s"


def test_what_is_read_in_the_event_loop_keeps_it_for_50_ms_at_most() -> None:
    """Longer texts are read in a thread, and what comes token by token is not read at once."""
    longest = {
        (name, number): (read, text(min(most, LOOP_CHARACTERS)))
        for name, (read, most, texts) in READERS.items()
        for number, text in enumerate(map(made, texts))
        if isinstance(text(1), str | bytes) and "token by token" not in name
    }
    assert len(longest) > 50
    most = LOOP_SECONDS * slowness()
    slow = [name for name, each in longest.items() if seconds(*each, 1) > most]
    assert [name for name in slow if seconds(*longest[name], 10) > LOOP_SECONDS * slowness()] == []  # it was busy


@pytest.mark.parametrize("text", ["a", "é"])
def test_a_body_of_texts_only_is_looked_at_in_milliseconds(text: str) -> None:
    """Every text that a request has is checked in the event loop, before anything is known of its length."""
    assert seconds(unicode_text, text * MAX_BODY_BYTES, 10) < 0.01 * slowness()


@pytest.mark.parametrize(
    "messages",
    [[{"id": 1, "role": "x"}] * 20_000, [{"id": "", "role": "user", "parts": [{"type": 1}] * 80_000}]],
    ids=["messages", "parts"],
)
def test_few_errors_of_a_conversation_that_a_page_posts_are_named(messages: list[object]) -> None:
    """Each is in the answer. These are bodies of a megabyte."""
    with pytest.raises(ValidationError) as refused:
        PostedChat.model_validate({"id": "chat", "messages": messages})
    assert refused.value.error_count() < 10


def test_of_a_conversation_that_a_page_posts_only_what_counts_is_read() -> None:
    last = {"id": "3", "role": "user", "parts": [{"type": "text", "text": "Hi"}]}
    unread = [{"id": "1", "role": "assistant"}, {"id": "2", "role": "assistant", "parts": 1}, {"role": "user"}, 1]
    read = PostedChat.model_validate({"id": "chat", "messages": [*unread, last]}).messages
    assert [each.id for each in read] == ["2", "3"]


# --- Which modules read texts ---

COVERED = """
dialog_engine: facades.ai_sdk.request facades.openai.request
    llm.anthropic_wire llm.anthropic_encoding llm.error_classification
    llm.decoding llm.lenient_json llm.openai_client llm.openai_decoding operators.logs tool_calls.arguments
    tool_calls.exposure.descriptions tool_calls.exposure.quarantine tool_calls.exposure.search tool_calls.normalise
    tool_calls.prompt_mode.attributes tool_calls.prompt_mode.dialect tool_calls.prompt_mode.function_calls
    tool_calls.prompt_mode.quotes tool_calls.prompt_mode.reply tool_calls.prompt_mode.source
    tool_calls.prompt_mode.tool_call tool_calls.prompt_mode.values tool_calls.results.texts
callstream_runtime: long_texts
plugins_mcp: mcp.content mcp.dispatcher mcp.error_classification mcp.unreadable
"""
OTHERS = {
    "what this project wrote, in one decode": """
dialog_engine: calls.reads chat.events http.resources http.views consumption.subjects identity.page_sessions
    event_log.growing_log facades.encoder
    peers.control relay.publish_queue relay.refusals storage.added_items storage.approvals storage.archive
    storage.brought storage.conversations storage.erasures storage.media
    storage.moves storage.questions storage.results storage.sqlite storage.statements tool_calls.resource_tools
plugins_contract: catalog choice dead_letters encryption held large_results messages pins pools trust updates
plugins_mcp: adoption catalog control
""",
    "configuration and commands of operators": """
dialog_engine: consumption.usage identity.api_keys llm.anthropic_client llm.context_tokens
    llm.providers.base operators.audit_chain operators.commands operators.encrypt operators.trace
    operators.trace_questions
    personal_data.redis_eraser personal_data.retention tool_calls.local_tools
callstream_runtime: redis_errors settings settings_sources
plugins_contract: rights signing
plugins_mcp: mcp.fields mcp.known_servers mcp.servers_file mcp.spec mcp.transport_options
    operators.arguments operators.servers operators.tools
""",
    "texts that their limits keep short: a head of 32 KiB, a token, a name": """
dialog_engine: http.operators http.requests tool_calls.client_tools tool_calls.questions.rules identity.authenticator
    identity.principal http.responses identity.provider identity.tokens
callstream_runtime: http_connection
plugins_contract: questions reads
""",
    "in test_bounded_validation.py: a budget of time": """
dialog_engine: tool_calls.bounded_validation
""",
    "a payload in one decode": """
dialog_engine: llm.bedrock
""",
}
PARSERS = ("re", "re2", "difflib", "html", "json.loads", "json.decode", "Decoder", "raw_decode", "validate_json")
SERVICES = Path(__file__).parents[2] / "services"


def _modules(text: str) -> Iterator[str]:
    for line in text.strip().replace("\n    ", " ").split("\n"):
        package, _, names = line.partition(": ")
        yield from (f"{package}.{name}" for name in names.split())


def _parses(source: str) -> bool:
    tree = ast.parse(source if any(name.split(".")[-1] in source for name in PARSERS) else "")
    calls = (ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call))
    return any(call.split(".")[0] in PARSERS or call.endswith(PARSERS[4:]) for call in calls)


def test_every_module_that_parses_text_is_measured_or_has_a_reason() -> None:
    parsing = [
        ".".join(file.relative_to(SERVICES).parts[2:]).removesuffix(".py")
        for file in SERVICES.glob("*/src/**/*.py")
        if _parses(file.read_text())
    ]
    listed = [*_modules(COVERED), *(module for text in OTHERS.values() for module in _modules(text))]
    assert {*parsing} == {*listed}
