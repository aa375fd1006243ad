"""The request on the wire, the catalog, the keys."""

import re
from typing import Any

import msgspec
import pytest

from plugins_contract.catalog import ServerCatalog, ToolEntry
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import decode_reply, encode_reply
from plugins_contract.messages import UnsupportedEventError, arguments_hash, decode_request, encode_request
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
    state=CallState.SUCCEEDED,
    content=(TextBlock("x"), MediaBlock("image/png", "AA=="), LinkBlock("file:///x", "x")),
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
    named = {
        keys.call("i"),
        keys.response("i"),
        keys.mailbox("e"),
        keys.turn("t"),
        keys.catalog_of("s"),
        keys.requests_of("a"),
    }
    return named | {keys.requests, keys.dead, keys.control, keys.catalog, keys.route("events.ltm")}


def test_keys_are_distinct_and_as_documented() -> None:
    assert names_of(Keys()) == {
        "events.plugins",
        "events.plugins.dead",
        "plugins.calls:i",
        "rpc.plugins.responses:i",
        "rpc.plugins.mailbox:e",
        "rpc.plugins.requests:a",
        "plugins.control",
        "plugins.catalog",
        "plugins.catalog:s",
        "dialog.turns:t",
        "events.ltm",
    }


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
