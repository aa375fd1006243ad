"""Rights: what a file of rules allows, and that nothing else is offered, found, listed, requested or run."""

import asyncio
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from callstream_runtime.watched_file import WatchedFile
from dialog_engine.errors import ToolChangedError
from dialog_engine.model import ApprovalStep, Choice, ToolMessage, ToolStatus
from dialog_engine.tool_calls.exposure.allowed import MOST_KEPT, ToolFilters
from dialog_engine.tool_calls.exposure.exposure import Exposure, ExposureMode, OfferedTools
from dialog_engine.tool_calls.exposure.quarantine import Quarantine
from dialog_engine.tool_calls.ports import RefusedTool, ServerView
from dialog_engine.tool_calls.values import Approve
from plugins_contract.catalog import ApprovalPolicy, Quarantined
from plugins_contract.choice import ToolChoice
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome
from plugins_contract.rights import Rights
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, is_step
from tests.support.fakes.models import ScriptedModel, asks, says
from tests.support.fakes.worker import Execution, FakeDirectory, FakeWorker, succeeded, tool
from tests.support.fakes.worker import gives as gives_tool
from tests.support.handling import DONE, Bench, gives

RULES = """
[[allow]]
tools = ["time/*"]

[[allow]]
roles = ["operator"]
tools = ["*/*"]

[[allow]]
subjects = ["ann", "*@example.com"]
roles = ["staff"]
tools = ["git/log", "git/show_*"]

[[deny]]
subjects = ["mallory@example.com"]
tools = ["*/*"]

[[deny]]
tools = ["*/delete_*"]
"""


@pytest.mark.parametrize(
    ("subject", "roles", "server", "name", "allowed"),
    [
        ("bob", ("user",), "time", "now", True),
        ("bob", ("user",), "git", "log", False),
        ("ann", ("user",), "git", "log", True),
        ("ann", ("user",), "git", "show_commit", True),
        ("ann", ("user",), "git", "logs", False),
        ("ann", ("user",), "git2", "log", False),
        ("Ann", ("user",), "git", "log", False),
        ("eve@example.com", (), "git", "log", True),
        ("mallory@example.com", ("operator",), "git", "log", False),
        ("mallory@example.com", ("operator",), "time", "now", False),
        ("bob", ("user", "staff"), "git", "log", True),
        ("bob", ("operator",), "anything", "at_all", True),
        ("bob", ("operator",), "files", "delete_all", False),
        ("", (), "time", "now", True),
        ("", (), "git", "log", False),
    ],
)
def test_a_tool_is_allowed_by_a_rule_that_is_for_the_sender_and_denied_by_none(
    subject: str, roles: tuple[str, ...], server: str, name: str, allowed: bool
) -> None:
    assert Rights(RULES.encode()).access(subject, roles).allows(server, name) == allowed


def test_the_server_of_a_pattern_ends_at_the_first_slash() -> None:
    access = Rights(b'[[allow]]\ntools = ["git/a/b", "x/*"]').access("", ())
    assert access.allows("git", "a/b")
    assert not access.allows("git/a", "b")
    assert access.allows("x", "a/b")
    assert not access.allows("x/a", "b")


def test_an_empty_file_allows_nothing() -> None:
    assert not Rights(b"").access("ann", ("operator",)).allows("time", "now")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("allow = 1", "array"),
        ("[[allow]]\ntools = []", "tools"),
        ('[[allow]]\nroles = ["a"]', "tools"),
        ('[[allow]]\ntools = ["git"]', "'git', which is not server/tool"),
        ('[[allow]]\ntools = ["/x"]', "not server/tool"),
        ('[[allow]]\ntools = ["a/b"]\nrole = ["x"]', "role"),
        ('[[allows]]\ntools = ["a/b"]', "allows"),
        ("not TOML", "file of rights"),
    ],
)
def test_a_wrong_file_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Rights(text.encode())


# --- In an engine ---

READ, WRITE, NOW = (tool(name) for name in ("files__read", "files__write", "time__now"))
ONLY_READ = Choice(tools=ToolChoice(servers=("files",), deny=("*/write",)))


class Directory(FakeDirectory):
    @property
    def servers(self) -> tuple[ServerView, ...]:
        refused = RefusedTool("write", "m", "bad"), RefusedTool("read", "m", "bad")
        return tuple(replace(view, refused=refused) for view in super().servers)


class Place:
    """A directory of tools behind a file of rules that a test replaces."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "rights.toml"
        self.now = 0.0
        self.write('[[allow]]\nsubjects = ["ann"]\ntools = ["files/read"]')
        bad = tuple(Quarantined(tool=name, reason="bad") for name in ("write", "read"))
        self.directory = Directory(READ, WRITE, NOW, quarantined=bad)
        rights = WatchedFile(self.path, Rights, Rights(b""), now=lambda: self.now)
        self.tools = OfferedTools(self.directory, Quarantine(), ToolFilters(rights))

    def write(self, text: str) -> None:
        """Replace the file; it is noticed at the next use."""
        self.path.with_suffix(".new").write_text(text)
        self.path.with_suffix(".new").replace(self.path)
        self.now += 1

    def engine(
        self, model: ScriptedModel, mode: ExposureMode = ExposureMode.DIRECT, worker: FakeWorker | None = None
    ) -> FakeEngine:
        return FakeEngine(model, tools=self.tools, exposure=Exposure(mode), worker=worker or FakeWorker())


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_sender_sees_the_tools_and_servers_that_the_rules_allow(place: Place) -> None:
    ann, bob = place.tools.visible_to("ann", ()), place.tools.visible_to("bob", ())
    assert ann.tools() == (READ,)
    assert bob.tools() == ()
    [view] = ann.servers
    assert view.catalog.server == "files"
    assert view.catalog.tools == (READ,)
    assert [each.tool for each in (*view.catalog.quarantined, *view.refused)] == ["read", "read"]
    assert bob.servers == ()


def test_no_message_names_a_tool_that_the_sender_may_not_use(place: Place) -> None:
    found = place.tools.visible_to("ann", ()).find("files__wri")
    assert isinstance(found, ToolError)
    assert found.code is ErrorCode.TOOL_NOT_FOUND
    assert "files__read" in found.message
    assert "write" not in found.message
    assert "time" not in found.message


def test_senders_with_the_same_rights_share_one_catalog_and_the_number_kept_is_bounded(place: Place) -> None:
    assert place.tools.visible_to("ann", ()).tools() is place.tools.visible_to("ann", ("staff",)).tools()
    rules = "\n".join(f'[[allow]]\nsubjects = ["s{n}"]\ntools = ["files/{n}*"]' for n in range(3 * MOST_KEPT))
    rights = ToolFilters(WatchedFile(place.path, lambda _: Rights(rules.encode()), Rights(b"")))
    for n in range(3 * MOST_KEPT):
        rights.restricted(place.directory, f"s{n}", ()).tools()
    assert len(rights._kept) == MOST_KEPT  # pyright: ignore[reportPrivateUsage]


@promise("a tool that a sender may not use is neither offered nor requested nor run")
@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
@pytest.mark.parametrize("choice", [Choice(), ONLY_READ], ids=["by the rights", "by the choice"])
@pytest.mark.parametrize(
    ("mode", "call"),
    [
        (ExposureMode.DIRECT, ("files__write", "{}")),
        (ExposureMode.DIRECT, ("now", "{}")),
        (ExposureMode.GATEWAY, ("mcp_query", '{"resource": "files", "operation": "write", "params": {}}')),
        (ExposureMode.GATEWAY, ("mcp_query", '{"resource": "time", "operation": "now", "params": {}}')),
        (ExposureMode.GATEWAY, ("mcp_query", '{"resource": "files", "operation": "help"}')),
        (ExposureMode.SEARCH, ("tool_search", '{"query": "write files, or what time it is now"}')),
    ],
)
async def test_a_tool_that_is_excluded_is_not_there_for_the_model(
    place: Place, choice: Choice, mode: ExposureMode, call: tuple[str, str]
) -> None:
    if choice is ONLY_READ:
        place.write('[[allow]]\ntools = ["*/*"]')
        place.directory.put(msgspec.structs.replace(WRITE, approval=ApprovalPolicy.ALWAYS))
    model = ScriptedModel(asks(call, ("files__write", "{}"), ("files__read", "{}")), says("Done."))
    async with place.engine(model, mode) as engine:
        turn = await engine.turns.start("ann", None, "Try", choice=choice)
        events = await engine.seen(turn)
        assert len(engine.worker.executed) == 1
        assert not [each for each in events if isinstance(each, ApprovalStep)], "nobody is asked about such a tool"
    for request in model.requests:
        offered = msgspec.json.encode([(each.name, each.description) for each in request.tools]).decode()
        results = [each.content for each in request.messages if isinstance(each, ToolMessage)]
        for text in (offered, *results[:1]):
            assert "time__now" not in text
            assert "write" not in re.sub("[\"'](files__)?write[\"']?", "", text)


@promise("a tool that a message has not chosen is neither offered nor found nor requested nor run")
async def test_a_turn_that_is_resumed_has_the_choice_that_it_began_with(place: Place) -> None:
    place.write('[[allow]]\ntools = ["*/*"]')
    model, finish = (
        ScriptedModel(asks(("files__read", "{}")), asks(("time__now", "{}")), says("Done.")),
        asyncio.Event(),
    )
    worker = FakeWorker({"files__read": gives_tool(succeeded("x"), finish)})
    async with place.engine(model, worker=worker) as engine:
        turn = await engine.turns.start("ann", None, "Try", choice=ONLY_READ)
        await engine.until(turn, is_step(ToolStatus.RUNNING, "files__read"))
        assert await engine.restart() == 1
        finish.set()
        await engine.seen(turn)
        assert len(engine.worker.executed) == 1
    assert [[each.name for each in request.tools] for request in model.requests] == [["files__read"]] * 3


async def test_a_right_that_is_withdrawn_during_a_turn_counts_at_the_next_call(place: Place) -> None:
    model = ScriptedModel(asks(("files__read", "{}")), asks(("files__read", "{}")), says("Done."))

    async def withdraw(_: Execution) -> ToolOutcome:
        place.write("")
        return succeeded("text")

    async with place.engine(model, worker=FakeWorker({"files__read": withdraw})) as engine:
        await engine.turn("Read twice", subject="ann")
        assert len(engine.worker.executed) == 1


@promise("a tool that a sender may not use is neither offered nor requested nor run")
async def test_an_approval_does_not_lift_a_missing_right(place: Place) -> None:
    place.directory.put(msgspec.structs.replace(READ, approval=ApprovalPolicy.ALWAYS))
    model = ScriptedModel(asks(("files__read", "{}")), says("Done."))
    async with place.engine(model) as engine:
        turn = await engine.turns.start("ann", None, "Read")
        steps: list[ApprovalStep] = []
        await engine.until(turn, lambda event: isinstance(event, ApprovalStep) and not steps.append(event))
        found = engine.store.asked(steps[0].call.correlation_id)
        assert found
        asked = found[1]
        approve = Approve(asked.question.hash)
        for subject in ("bob", ""):
            with pytest.raises(ToolChangedError, match="may not use"):
                await engine.pending.decide(turn.turn_id, asked, approve, subject)
        place.write("")
        with pytest.raises(ToolChangedError, match="may not use"):
            await engine.pending.decide(turn.turn_id, asked, approve, "ann")
        assert engine.worker.executed == []
        await engine.turns.cancel(turn.turn_id)


# --- In a worker ---


@promise("a tool that a sender may not use is neither offered nor requested nor run")
@pytest.mark.parametrize(("subject", "runs"), [("ann", True), ("bob", False), ("", False)])
async def test_a_worker_runs_only_what_its_own_file_allows(tmp_path: Path, subject: str, runs: bool) -> None:
    path = tmp_path / "rights.toml"
    path.write_text('[[allow]]\nsubjects = ["ann"]\ntools = ["demo/*"]\n[[allow]]\nroles=["staff"]\ntools=["demo/add"]')
    bench = Bench(rights=WatchedFile(path, Rights, Rights(b"")))
    await bench.handle(gives(DONE), subject=subject)
    assert len(bench.server.calls) == runs
    if runs:
        assert bench.outcome.state is CallState.SUCCEEDED
    else:
        assert bench.outcome.state is CallState.FAILED
        assert bench.outcome.error
        assert bench.outcome.error.code is ErrorCode.PERMISSION_DENIED
        bench = Bench(rights=WatchedFile(path, Rights, Rights(b"")))
        await bench.handle(gives(DONE), subject=subject, roles=("staff",))
        assert len(bench.server.calls) == 1
