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
from dialog_engine.tool_calls.ports import ServerView, ToolDirectory
from dialog_engine.tool_calls.processors import ToolPreparation
from dialog_engine.tool_calls.resource_tools import PAGE_CHARS, ListResources, ReadResource, ResourceReader
from plugins_contract.catalog import ResourceEntry, ServerCatalog, ServerState
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
from tests.support.fakes.worker import FakeCatalog, tool
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


class Library(FakeCatalog, ToolDirectory):
    """A server with two resources and one tool."""

    def __init__(self) -> None:
        super().__init__(tool("notes__add"))

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return (ServerView(ServerCatalog(server="notes", resources=(PAGES, SECRET)), ServerState.READY, None, 1),)

    @property
    def workers(self) -> int:
        return 1

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


def answer_of(outcome: ToolOutcome) -> dict[str, Any]:
    assert isinstance(outcome.content[0], TextBlock)
    return msgspec.json.decode(outcome.content[0].text)


async def test_a_model_lists_resources_and_reads_them_in_pages() -> None:
    library, reader, turn = Library(), Reader(PAGE_CHARS + 10), Turn("t", "s", "ann")
    listed = answer_of(await ListResources(library).answer(turn, {"query": "PAGES"}))
    assert listed == {
        "resources": [{"server": "notes", "uri": PAGES.uri, "name": "Pages", "description": "All pages."}],
        "more": 0,
    }
    tool = ReadResource(library, reader)
    first = answer_of(await tool.answer(turn, {"server": "notes", "uri": PAGES.uri}))
    assert (len(first["text"]), first["left"], first["nextOffset"]) == (PAGE_CHARS, 10, PAGE_CHARS)
    rest = answer_of(await tool.answer(turn, {"server": "notes", "uri": PAGES.uri, "offset": PAGE_CHARS}))
    assert rest == {"uri": PAGES.uri, "text": "x" * 10}
    for server, uri, code in (
        ("notes", "notes://a/../b", ErrorCode.INVALID_ARGUMENTS),
        ("other", PAGES.uri, ErrorCode.RESOURCE_NOT_FOUND),
    ):
        refused = await tool.answer(turn, {"server": server, "uri": uri})
        assert refused.error
        assert refused.error.code is code
    assert len(reader.asked) == 2


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
async def test_what_the_choice_of_a_message_excludes_is_neither_listed_nor_read_by_its_model() -> None:
    library, reader = Library(), Reader(1)
    turn = Turn("t", "s", "ann", choice=Choice(tools=ToolChoice(deny=("notes/resource:notes://secret/*",))))
    listed = answer_of(await ListResources(library).answer(turn, {}))
    assert [each["uri"] for each in listed["resources"]] == [PAGES.uri]
    refused = await ReadResource(library, reader).answer(turn, {"server": "notes", "uri": SECRET.uri})
    assert refused.error
    assert refused.error.code is ErrorCode.RESOURCE_NOT_FOUND
    assert reader.asked == []


async def test_the_tools_for_resources_are_offered_where_there_are_some() -> None:
    own = [each.entry for each in (ListResources(Library()), ReadResource(Library(), Reader(1)))]
    for source, offered in ((Library(), True), (FakeCatalog(tool("notes__add")), False)):
        preparation = ToolPreparation(source, Exposure(), reading=own)
        ctx = TurnContext(Turn("t", "s", "ann"), ScriptedModel(), MemoryBand(), ())
        names = [each.name for each in (await preparation.process(ctx)).tools]
        assert names == ["notes__add", *(("list_resources", "read_resource") if offered else ())]
