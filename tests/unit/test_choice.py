"""Which tools a message may use: the choice of its sender, and in a worker. In an engine: `test_rights.py`."""

import time

import msgspec
import pytest

from plugins_contract.choice import MAX_ENTRIES, MAX_ENTRY_CHARS, ToolChoice, decode_choice, encode_choice
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import decode_request, encode_request
from tests.marks import promise
from tests.support.handling import DONE, Bench, delivery, gives


@pytest.mark.parametrize(
    ("choice", "allowed"),
    [
        (ToolChoice(), ["files/read", "files/write", "time/now"]),
        (ToolChoice(servers=("files",)), ["files/read", "files/write"]),
        (ToolChoice(servers=("f*s", "other")), ["files/read", "files/write"]),
        (ToolChoice(servers=()), []),
        (ToolChoice(allow=()), []),
        (ToolChoice(allow=("files/read", "time/*")), ["files/read", "time/now"]),
        (ToolChoice(servers=("time",), allow=("files/*",)), []),
        (ToolChoice(deny=("*/*r*",)), ["time/now"]),
        (ToolChoice(allow=("*/*",), deny=("files/*",)), ["time/now"]),
        (ToolChoice(allow=("files/rea", "files/read*d", "*s/*w*t*e")), ["files/write"]),
    ],
)
def test_a_choice_is_a_part_of_the_tools(choice: ToolChoice, allowed: list[str]) -> None:
    tools = [tuple(each.split("/")) for each in ("files/read", "files/write", "time/now")]
    assert ["/".join(each) for each in tools if choice.allows(*each)] == allowed
    assert decode_choice(encode_choice(choice)) == choice
    for server in {server for server, name in tools if choice.allows(server, name)}:
        assert choice.sees(server)


def test_the_longest_choice_takes_no_noticeable_time() -> None:
    pattern = "*a" * (MAX_ENTRY_CHARS // 2 - 2) + "/*b"
    choice = ToolChoice(servers=(pattern,) * MAX_ENTRIES, allow=(pattern,) * MAX_ENTRIES)
    started = time.thread_time()
    assert not ToolChoice(deny=(pattern,) * MAX_ENTRIES, allow=(pattern,) * MAX_ENTRIES).allows("a" * 200, "a" * 200)
    assert not choice.allows("a" * 200, "x")
    assert time.thread_time() - started < 0.05


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
async def test_a_worker_does_not_run_what_the_choice_in_the_request_excludes() -> None:
    for choice, runs in ((ToolChoice(deny=("*/add",)), 0), (ToolChoice(servers=("demo",)), 1), (msgspec.UNSET, 1)):
        bench = Bench()
        await bench.handle(gives(DONE), choice=choice)
        assert len(bench.server.calls) == runs
        if not runs:
            assert bench.outcome.error
            assert bench.outcome.error.code is ErrorCode.PERMISSION_DENIED
            assert "it was not run" in bench.outcome.error.message


def test_a_request_without_a_choice_is_the_same_bytes_as_before_and_one_with_it_keeps_it() -> None:
    plain = delivery().request
    assert b"choice" not in encode_request(plain)
    chosen = msgspec.structs.replace(plain, choice=ToolChoice(servers=("files",), deny=("*/write",)))
    assert decode_request(encode_request(chosen)) == chosen
