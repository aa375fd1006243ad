"""Requests that read: which addresses, which versions, and what a worker refuses."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from dialog_engine.model import Choice, Turn
from dialog_engine.tool_calls.exposure.allowed import ToolFilters
from dialog_engine.tool_calls.exposure.exposure import Exposure
from dialog_engine.tool_calls.pipeline import TurnContext
from dialog_engine.tool_calls.ports import ToolDirectory
from dialog_engine.tool_calls.processors import ToolPreparation
from dialog_engine.tool_calls.resource_tools import NOTES, ListResources, ReadResource, ResourceReader
from plugins_contract.catalog import ResourceEntry
from plugins_contract.choice import ToolChoice
from plugins_contract.encryption import Cipher, open_request, seal_request
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import READ_VERSION, UnsupportedEventError, decode_request, encode_request
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.reads import MAX_URI_CHARS, Part, ReadKind, ResourceRead, unusable_uri
from plugins_contract.rights import Rights
from plugins_mcp.decisions import refusal
from tests.marks import promise
from tests.support.fakes.models import MemoryBand, ScriptedModel
from tests.support.fakes.worker import FakeCatalog, FakeDirectory, tool
from tests.support.handling import DONE, Bench, delivery, gives


@pytest.mark.parametrize(
    ("uri", "usable"),
    [
        ("file:///a/b.txt", True),
        ("notes://a/one?x=1..2#..y", True),
        ("urn:isbn:1", True),
        ("file:///a/..hidden/...", True),
        ("", False),
        ("a/b", False),
        ("file:///a/../b", False),
        ("file:///a/..", False),
        ("file:///a/./b", False),
        ("file:///a/%2e%2e/b", False),
        ("file:///a/.%2E?x", False),
        ("file:///a/..%2fb", False),
        ("file:///a/%252e%252E%252fb", False),
        ("file:///a/..%5Cb", False),
        ("file:///a%00.txt", False),
        ("file:///a%20b/100%25", True),
        ("file:..", False),
        ("file:///a\\..\\b", False),
        ("file:///a b", False),
        ("file:///a\nb", False),
        ("x:" + "y" * MAX_URI_CHARS, False),
    ],
)
def test_an_address_that_leads_out_of_its_folder_is_not_read(uri: str, usable: bool) -> None:
    assert (unusable_uri(uri) is None) is usable
    request = msgspec.structs.replace(delivery().request, kind=ReadKind.RESOURCE, tool=f"resource:{uri}")
    assert (refusal(request, None) is None) is usable


DENIED = "file:///Public/Secret %5B1%5D/*"


@promise("a rule or choice that denies a resource denies it in every spelling of its URI")
@pytest.mark.parametrize(
    ("uri", "allowed"),
    [
        ("file:///Public/Secret [1]/key", False),
        ("FILE:///public/SECRET [1]/key", False),
        ("file:///Public/%53ecret%20%5B1%5D%2Fkey", False),
        ("file:///Public/%2553ecret [1]/key", False),
        ("file:////Public//Secret [1]/key", False),
        ("file:/Public/Secret [1]/key", False),
        ("file://LOCALHOST/Public/Secret [1]/key", False),
        ("file:///Public/Secret [2]/key", True),
        ("other:///Public/Secret [1]/key", True),
    ],
)
def test_a_denied_resource_is_denied_in_every_spelling(uri: str, allowed: bool) -> None:
    pattern = f"demo/resource:{DENIED}"
    rights = Rights(f'[[allow]]\ntools = ["*/*"]\n[[deny]]\ntools = ["{pattern}"]'.encode())
    for only in (rights.access("u", ()), ToolChoice(deny=(pattern,))):
        assert only.allows("demo", f"resource:{uri}") is allowed
        assert only.allows("other", f"resource:{uri}")
        assert only.allows("demo", uri), "the name of a tool is as it is"


def test_what_a_rule_or_choice_allows_is_one_spelling() -> None:
    pattern = "demo/resource:notes://Public/*"
    rights = Rights(f'[[allow]]\ntools = ["{pattern}"]'.encode())
    for only in (rights.access("u", ()), ToolChoice(allow=(pattern,))):
        assert only.allows("demo", "resource:notes://Public/a")
        assert not only.allows("demo", "resource:notes://public/a")


def test_a_read_has_a_version_that_older_workers_do_not_run_as_a_call() -> None:
    read = msgspec.structs.replace(delivery().request, kind=ReadKind.RESOURCE, event_version=READ_VERSION)
    assert decode_request(encode_request(read)) == read
    for wrong in (msgspec.structs.replace(read, event_version=1), msgspec.structs.replace(read, kind=msgspec.UNSET)):
        with pytest.raises(UnsupportedEventError, match="kind"):
            decode_request(encode_request(wrong))
    cipher = Cipher({"k": AESGCM(b"x" * 32)})
    sealed = decode_request(encode_request(seal_request(read, cipher)))
    assert (sealed.event_version, sealed.arguments) == (READ_VERSION, {})
    assert open_request(sealed, cipher).arguments == read.arguments


@promise("a resource or prompt that a sender has no right to is neither listed nor found nor read")
async def test_a_worker_reads_nothing_that_rights_or_the_choice_exclude() -> None:
    rights = Rights(b'[[allow]]\ntools = ["demo/resource:file:///public/*"]').access("u", ())
    for uri, reads in (
        ("file:///public/a", True),
        ("file:///private/a", False),
        ("file:///public/../private/a", False),
    ):
        request = msgspec.structs.replace(delivery().request, kind=ReadKind.RESOURCE, tool=f"resource:{uri}")
        assert (refusal(request, rights) is None) is reads
    bench = Bench()
    choice = ToolChoice(deny=("demo/prompt:*",))
    await bench.handle(gives(DONE), kind=ReadKind.PROMPT, tool="prompt:x", choice=choice)
    assert bench.server.calls == []
    assert bench.outcome.error
    assert bench.outcome.error.code is ErrorCode.PERMISSION_DENIED


# --- For a model ---

PAGES = ResourceEntry(uri="notes://pages", name="Pages", description="All pages.")
SECRET = ResourceEntry(uri="notes://secret/key", name="Key")


class Library(FakeDirectory):
    """A server with two resources, or these, and one tool."""

    def __init__(self, *resources: ResourceEntry) -> None:
        super().__init__(tool("notes__add"), resources=resources or (PAGES, SECRET))

    def has_resources(self) -> bool:
        return True

    def visible_to(self, subject: str, roles: Sequence[str], choice: ToolChoice | None = None) -> ToolDirectory:
        return ToolFilters().restricted(self, subject, roles, choice)


class Reader(ResourceReader):
    """Answers with a text of so many characters, and keeps what was asked."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.asked: list[str] = []

    async def read(self, kind: ReadKind, server: str, name: str, arguments: dict[str, Any], **_: Any) -> ToolOutcome:
        self.asked.append(f"{server}/{name}")
        read = ResourceRead(contents=(Part(uri="notes://pages", text="x" * self.size),))
        return ToolOutcome(CallState.SUCCEEDED, (TextBlock(msgspec.json.encode(read).decode()),))


def text_of(outcome: ToolOutcome) -> str:
    assert isinstance(outcome.content[0], TextBlock)
    return outcome.content[0].text


def answer_of(outcome: ToolOutcome) -> dict[str, Any]:
    return msgspec.json.decode(text_of(outcome))


async def test_a_model_lists_resources_and_reads_them_in_pages() -> None:
    library, reader, turn = Library(), Reader(710), Turn("t", "s", "ann")
    listed = answer_of(await ListResources(library, 1_000).answer(turn, {"query": "PAGES"}))
    assert listed == {
        "resources": [{"server": "notes", "uri": PAGES.uri, "name": "Pages", "description": "All pages."}],
        "more": 0,
    }
    tool = ReadResource(library, reader, 1_000)
    first = answer_of(await tool.answer(turn, {"server": "notes", "uri": PAGES.uri}))
    assert (len(first["text"]), first["left"], first["nextOffset"]) == (1_000 - NOTES, 10, 1_000 - NOTES)
    rest = answer_of(await tool.answer(turn, {"server": "notes", "uri": PAGES.uri, "offset": first["nextOffset"]}))
    assert rest == {"uri": PAGES.uri, "text": "x" * 10}
    for server, uri, code in (
        ("notes", "notes://a/../b", ErrorCode.INVALID_ARGUMENTS),
        ("other", PAGES.uri, ErrorCode.RESOURCE_NOT_FOUND),
    ):
        refused = await tool.answer(turn, {"server": server, "uri": uri})
        assert refused.error
        assert refused.error.code is code
    assert len(reader.asked) == 2


@pytest.mark.parametrize(("max_chars", "pages"), [(100_000, 3), (16_000, 10), (1_000, 120)])
async def test_a_long_list_is_in_pages_that_are_no_larger_than_a_result(max_chars: int, pages: int) -> None:
    entries = [ResourceEntry(uri=f"notes://{n}/{'x' * 900}", name=str(n), description="y" * 900) for n in range(120)]
    tool, turn, found, offset = ListResources(Library(*entries), max_chars), Turn("t", "s", "ann"), list[str](), 0
    for left in range(pages - 1, -1, -1):
        outcome = await tool.answer(turn, {"offset": offset})
        assert len(text_of(outcome)) <= max(max_chars, 1_300)
        listed = answer_of(outcome)
        found += [each["uri"] for each in listed["resources"]]
        assert (listed["more"], "nextOffset" in listed) == (120 - len(found), left > 0)
        offset = listed.get("nextOffset", 0)
    assert found == [each.uri for each in entries]
    assert answer_of(await tool.answer(turn, {"offset": 500})) == {"resources": [], "more": 0}


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
async def test_what_the_choice_of_a_message_excludes_is_neither_listed_nor_read_by_its_model() -> None:
    library, reader = Library(), Reader(1)
    turn = Turn("t", "s", "ann", choice=Choice(tools=ToolChoice(deny=("notes/resource:notes://secret/*",))))
    listed = answer_of(await ListResources(library, 1_000).answer(turn, {}))
    assert [each["uri"] for each in listed["resources"]] == [PAGES.uri]
    refused = await ReadResource(library, reader, 1_000).answer(turn, {"server": "notes", "uri": SECRET.uri})
    assert refused.error
    assert refused.error.code is ErrorCode.RESOURCE_NOT_FOUND
    assert reader.asked == []


async def test_the_tools_for_resources_are_offered_where_there_are_some() -> None:
    own = [each.entry for each in (ListResources(Library(), 1_000), ReadResource(Library(), Reader(1), 1_000))]
    for source, offered in ((Library(), True), (FakeCatalog(tool("notes__add")), False)):
        preparation = ToolPreparation(source, Exposure(), reading=own)
        ctx = TurnContext(Turn("t", "s", "ann"), ScriptedModel(), MemoryBand(), ())
        names = [each.name for each in (await preparation.process(ctx)).tools]
        assert names == ["notes__add", *(("list_resources", "read_resource") if offered else ())]
