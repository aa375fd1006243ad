"""The request on the wire, the catalog, the keys, the names, and the arguments of scripts."""

import re
from importlib.resources import files
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins_contract import ledger
from plugins_contract.catalog import MAX_NAME_LENGTH, ServerCatalog, ToolEntry, exposed_name
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import decode_reply, encode_reply, scripts, steps
from plugins_contract.messages import UnsupportedEventError, arguments_hash, decode_request, encode_request, new_id
from plugins_contract.outcomes import (
    CallFinished,
    CallProgress,
    CallReply,
    CallStarted,
    CallState,
    LinkBlock,
    MediaBlock,
    TextBlock,
    ToolOutcome,
)
from tests.marks import promise
from tests.support.handling import delivery
from tests.support.processes import ROOT

REQUEST = delivery().request


def wire(**changes: Any) -> bytes:
    """The request as JSON, with some fields changed; None takes one away."""
    fields = msgspec.json.decode(encode_request(REQUEST)) | changes
    return msgspec.json.encode({name: value for name, value in fields.items() if value is not None})


def test_fields_of_a_later_release_are_ignored() -> None:
    assert decode_request(wire(somethingNew=1)) == REQUEST


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"{", "not a PluginToolCallRequested event"),
        (b"[]", "Expected `object`"),
        (wire(toolName=None), "toolName"),
        (wire(arguments=[]), r"\$\.arguments"),
        (wire(deadline="soon"), r"\$\.deadline"),
        (wire(executionClass="twice"), r"\$\.executionClass"),
        (wire(eventType="Other"), "eventType is 'Other'"),
        (wire(eventVersion=5), "eventVersion is 5, this release reads 1 and 2 and 3 and 4"),
        (wire(eventVersion=2), "a request with `sealed` has eventVersion 2"),
        (wire(sealed="x"), "a request with `sealed` has eventVersion 2"),
    ],
)
def test_a_request_that_cannot_be_read_says_which_field_is_wrong(data: bytes, complaint: str) -> None:
    with pytest.raises(UnsupportedEventError, match=complaint):
        decode_request(data)


SAME_OR_NOT: list[tuple[tuple[str, Any], tuple[str, Any], bool]] = [
    (("t", {"a": 1, "b": 2}), ("t", {"b": 2, "a": 1}), True),
    (("t", {"a": {"x": 1, "y": 2}}), ("t", {"a": {"y": 2, "x": 1}}), True),
    (("t", {"a": [1, 2]}), ("t", {"a": [2, 1]}), False),
    (("t", {"a": 1}), ("u", {"a": 1}), False),
    (("t", {"a": 1}), ("t", {"a": "1"}), False),
    (("t", {}), ("t", {"a": None}), False),
]


@pytest.mark.parametrize(("one", "other", "same"), SAME_OR_NOT)
def test_the_hash_tells_requests_apart(one: tuple[str, Any], other: tuple[str, Any], same: bool) -> None:
    first, second = (
        msgspec.structs.replace(REQUEST, tool_name=name, arguments=arguments) for name, arguments in (one, other)
    )
    assert (arguments_hash(first) == arguments_hash(second)) is same


OUTCOME = ToolOutcome(
    state=CallState.SUCCEEDED, content=(TextBlock("x"), MediaBlock("image/png", "AA=="), LinkBlock("file:///x", "x"))
)


@pytest.mark.parametrize(
    "reply", [CallStarted(2), CallProgress(0.5, 1.0, "half"), CallProgress(1), CallFinished(OUTCOME)]
)
def test_replies_survive_the_wire(reply: CallReply) -> None:
    assert decode_reply(encode_reply(reply), cipher=CLEAR) == reply


def test_only_published_and_started_are_not_final() -> None:
    assert {state for state in CallState if not state.terminal} == {CallState.PUBLISHED, CallState.STARTED}


def catalog(**changes: Any) -> ServerCatalog:
    tool = ToolEntry(name="demo__add", server="demo", tool="add", input_schema={"type": "object", "title": "add"})
    return ServerCatalog(server="demo", tools=(msgspec.structs.replace(tool, **changes),))


def test_the_digest_does_not_depend_on_the_order_of_keys() -> None:
    assert catalog().encoded() == catalog(input_schema={"title": "add", "type": "object"}).encoded()


def names_of(keys: Keys) -> set[str]:
    named = {keys.call("i"), keys.response("i"), keys.mailbox("e"), keys.turn("t"), keys.catalog_of("s")}
    return named | {
        *(keys.requests_of("a"), keys.requests, keys.dead, keys.control, keys.catalog, keys.route("events.ltm"))
    }


def test_keys_are_distinct_and_as_documented() -> None:
    assert names_of(Keys()) == {
        "events.plugins", "events.plugins.dead", "plugins.calls:i", "rpc.plugins.responses:i", "rpc.plugins.mailbox:e",
        "rpc.plugins.requests:a", "plugins.control", "plugins.catalog", "plugins.catalog:s", "dialog.turns:t",
        "events.ltm",
    }  # fmt: skip


def test_a_prefix_goes_in_front_of_every_key() -> None:
    assert names_of(Keys("{callstream}:")) == {f"{{callstream}}:{name}" for name in names_of(Keys())}


def test_permanent_keys_are_the_streams_and_the_list_of_servers() -> None:
    assert Keys("p:").permanent == {
        "p:events.plugins", "p:events.plugins.dead", "p:plugins.catalog", "p:events.ltm",
        "p:events.analytics", "p:events.audit", "p:rpc.plugins.workers", "p:rpc.plugins.pools", "p:dialog.incarnation",
    }  # fmt: skip


def test_every_final_state_is_in_the_table_of_the_wire_page() -> None:
    table = (ROOT / "docs" / "wire.md").read_text().split("| `state` | |\n")[1].split("\n\n")[0]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {state for state in CallState if state.terminal}


# --- Names: what a model calls a tool, and what each call is called ---


ACCEPTED = re.compile(r"[a-zA-Z0-9_-]{1,64}")


@pytest.mark.parametrize(
    ("server", "tool", "name"),
    [
        ("time", "convert_time", "time__convert_time"),
        ("s", "t" * 61, "s__" + "t" * 61),
        ("demo", "a__b", "demo__a__b"),
        ("github.com", "search", "github_com__search_a0ac03fd"),
    ],
)
def test_a_name_that_fits_is_server_and_tool_and_never_changes(server: str, tool: str, name: str) -> None:
    assert exposed_name(server, tool) == name


@promise("tool names are stable, at most 64 characters and never collide")
@given(st.text(min_size=1), st.text(min_size=1))
def test_every_name_is_one_that_providers_accept(server: str, tool: str) -> None:
    name = exposed_name(server, tool)

    assert ACCEPTED.fullmatch(name)
    assert len(name) <= MAX_NAME_LENGTH


@promise("tool names are stable, at most 64 characters and never collide")
@given(st.lists(st.tuples(st.text("ab_.", min_size=1), st.text("ab_.", min_size=1)), unique=True))
def test_two_tools_never_share_a_name(pairs: list[tuple[str, str]]) -> None:
    assert len({exposed_name(*pair) for pair in pairs}) == len(pairs)


def test_ids_are_unique_and_sort_by_the_millisecond_they_were_made_in() -> None:
    ids = [new_id() for _ in range(1_000)]

    assert len(set(ids)) == len(ids)
    assert [name[:13] for name in ids] == sorted(name[:13] for name in ids)


# --- Scripts of the ledger read what their functions name, and nothing else ---


TEXTS = {file.name.removesuffix(".lua"): file.read_text() for file in files(ledger).iterdir() if ".lua" in file.name}
SHARED = {"common", "letters", "loss", "sessions", "workers"}


@pytest.mark.parametrize("name", sorted(TEXTS.keys() - SHARED))
def test_a_script_reads_each_key_and_argument_by_its_name(name: str) -> None:
    given = re.findall(r"^local (\w+) = .*(?:KEYS|ARGV)", scripts.load(name), re.MULTILINE)
    assert given
    assert len(given) == len(set(given))
    # A group of names is given as a whole, also to a script that needs some of them only.
    whole = {"call", "channel", "mailbox", "id", "tool_call_id", "requests", "entry", "consumer"}
    text = re.sub("--.*", "", TEXTS[name])
    assert [each for each in given if each not in whole and not re.search(rf"\b{each}\b", text)] == []
    assert not re.search("KEYS|ARGV", text)


def test_a_command_has_keys_and_arguments_in_the_order_of_their_names() -> None:
    held = scripts.Held("stream", "1-1", "worker")
    command = steps.release(lease_ms=3, held=held, fence=2, call="call")
    assert command == ("release", ["call", "stream"], ["1-1", "worker", 2, 3])
    assert steps.audit(requests="r", calls=["a", "b"], silent_ms=1, max_bytes=2).keys == ["r", "a", "b"]
