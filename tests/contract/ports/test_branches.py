"""The tree of the turns of a session: one suite for SQLite and for PostgreSQL."""

import asyncio
import random
from dataclasses import dataclass, field, replace

import msgspec
import pytest

from dialog_engine.chat.history import Memory
from dialog_engine.chat.waiting_messages import Candidate
from dialog_engine.errors import SessionNotFoundError, TooManyBranchesError, TurnNotFoundError, TurnRunningError
from dialog_engine.model import Done, DoneReason, Turn, Usage, UserMessage
from dialog_engine.storage.branches import MAX_SIBLINGS
from plugins_contract.messages import new_id
from plugins_contract.outcomes import CallState, ToolOutcome
from tests.marks import exhaustive, promise
from tests.support.beginnings import begin
from tests.support.engine_stores import OUTCOME, EngineStore, tool_call


async def asked(storage: EngineStore, session_id: str, parent: str | None = None, text: str = "") -> Turn:
    """A turn that begins in a session."""
    turn = Turn(new_id(), session_id, "ada", parent=parent)
    await storage.turns.begin(turn, text or turn.turn_id)
    return turn


async def answered(storage: EngineStore, session_id: str, parent: str | None = None) -> str:
    """A turn that begins in a session, and ends."""
    turn = await asked(storage, session_id, parent)
    await storage.end(turn)
    return turn.turn_id


async def session(storage: EngineStore) -> tuple[str, str]:
    """A session with one turn that has ended, and this turn."""
    turn = await begin(storage.turns, "ada", None, "first")
    await storage.end(turn)
    return turn.session_id, turn.turn_id


async def shown(storage: EngineStore, session_id: str) -> list[str]:
    """The turns of the path that is shown, as pages of three messages have them."""
    found: list[str] = []
    before: int | None = None
    while True:
        page = (await storage.archive.transcript("ada", session_id, limit=3, before=before)).page
        found = [each.turn_id for each in page.messages if each.role == "user"] + found
        if not page.more:
            return found
        before = page.messages[0].message_id


async def by_an_earlier_release(storage: EngineStore, *turns: str) -> None:
    """Have these turns as that release writes them."""
    old = "UPDATE turns SET parent_turn_id = NULL, path_before = NULL WHERE turn_id = $1"
    await storage.database.write(lambda tx: tx.execute_many(old, [(each,) for each in turns]))


@dataclass(slots=True)
class Tree:
    """What the tree of a session is to be: the parent of each turn, in the order of the turns, and the leaf."""

    parents: dict[str, str]
    leaf: str
    old: list[str] = field(default_factory=list[str])
    """Turns of an earlier release, by which messages of all paths are counted."""

    def add(self, turn: str, parent: str) -> None:
        self.parents[turn] = parent
        self.leaf = turn

    def path(self, turn: str) -> list[str]:
        return [*self.path(self.parents[turn]), turn] if turn else []

    def children(self, turn: str) -> list[str]:
        return [child for child, parent in self.parents.items() if parent == turn]

    def move(self, turn: str) -> None:
        while children := self.children(turn):
            turn = children[-1]
        self.leaf = turn


@promise("a model sees the path of its turn only, and a page of a path costs as much as the page")
@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=exhaustive("more orders")) for seed in (0, 2))])
async def test_the_path_that_is_shown_and_sent_is_that_of_the_leaf(storage: EngineStore, seed: int) -> None:
    rng = random.Random(seed)
    session_id, first = await session(storage)
    if seed:
        await by_an_earlier_release(storage, first)
    tree = Tree({first: ""}, first)
    for _ in range(25):
        turns = [*tree.parents]
        match rng.choice(["go on", "branch", "branch", "move", "an earlier release"]):
            case "go on":
                parent = tree.leaf
                tree.add(await answered(storage, session_id), parent)
            case "branch":
                parent = rng.choice(["", *turns])
                tree.add(await answered(storage, session_id, parent), parent)
            case "move":
                turn = rng.choice(turns)
                tree.move(turn)
                assert await storage.sessions.move_leaf("ada", session_id, turn) == tree.leaf
            case _:
                turn = await answered(storage, session_id, turns[-1])
                await by_an_earlier_release(storage, turn)
                tree.add(turn, turns[-1])
                tree.old.append(turn)

        path = tree.path(tree.leaf)
        assert await shown(storage, session_id) == path
        transcript = await storage.archive.transcript("ada", session_id, limit=200)
        assert transcript.session.leaf_turn_id == tree.leaf
        for each in transcript.turns:
            assert each.parent_turn_id == tree.parents[each.turn_id]
            assert [*each.siblings] == tree.children(each.parent_turn_id)
        said, left_out = await storage.said(session_id, Memory(4, 1_000_000))
        texts = ["first" if each == first else each for each in path]
        assert [each.content for each in said if isinstance(each, UserMessage)] == texts[-2:]
        exact = 2 * len(path) - len(said)
        assert left_out >= exact
        assert left_out == exact or tree.old

    exported = await storage.archive.transcript("ada", session_id, limit=200, after=0)
    assert [each.turn_id for each in exported.page.messages[::2]] == [*tree.parents]


async def test_turns_of_other_sessions_and_subjects_are_not_found(storage: EngineStore) -> None:
    session_id, first = await session(storage)
    other, foreign = await session(storage)

    for parent in (foreign, "nowhere", "\ud7ff" * 100):
        with pytest.raises(TurnNotFoundError):
            await asked(storage, session_id, parent)
        with pytest.raises(TurnNotFoundError):
            await storage.archive.question("ada", session_id, parent)
        with pytest.raises(TurnNotFoundError):
            await storage.sessions.move_leaf("ada", session_id, parent)
    for subject, session_of in (("eve", session_id), ("ada", other)):
        with pytest.raises(TurnNotFoundError):
            await storage.archive.question(subject, session_of, first)
        with pytest.raises(TurnNotFoundError):
            await storage.sessions.move_leaf(subject, session_of, first)
    with pytest.raises(TurnNotFoundError):
        await storage.archive.made_calls("eve", first, 10)
    for subject, session_of in (("ada", "nowhere"), ("eve", session_id)):
        with pytest.raises(SessionNotFoundError):
            await begin(storage.turns, subject, session_of, "Hi")
    assert await shown(storage, session_id) == [first]


async def test_a_message_has_a_bounded_number_of_versions(storage: EngineStore) -> None:
    session_id, first = await session(storage)
    for _ in range(MAX_SIBLINGS - 1):
        await answered(storage, session_id, "")

    with pytest.raises(TooManyBranchesError, match=f"has {MAX_SIBLINGS} versions"):
        await asked(storage, session_id, "")
    await answered(storage, session_id, first)
    assert len(await shown(storage, session_id)) == 2


async def test_of_two_edits_at_once_one_begins(storage: EngineStore) -> None:
    session_id, first = await session(storage)
    await answered(storage, session_id)

    begun = await asyncio.gather(*(asked(storage, session_id, first) for _ in range(2)), return_exceptions=True)

    [turn] = [each for each in begun if isinstance(each, Turn)]
    [refused] = [each for each in begun if isinstance(each, TurnRunningError)]
    assert refused.turn_id == turn.turn_id
    assert await shown(storage, session_id) == [first, turn.turn_id]


async def test_the_leaf_is_moved_while_another_path_is_answered_and_nothing_else_changes(storage: EngineStore) -> None:
    session_id, first = await session(storage)
    running = await asked(storage, session_id, "")
    before = await storage.archive.turn("ada", running.turn_id)
    [listed] = await storage.sessions.list("ada", limit=9, before=None)

    await storage.sessions.move_leaf("ada", session_id, first)

    assert await storage.archive.turn("ada", running.turn_id) == before
    [moved] = await storage.sessions.list("ada", limit=9, before=None)
    assert moved == replace(listed, leaf_turn_id=first, revision=moved.revision)
    assert moved.revision > listed.revision
    await storage.end(running)
    assert await shown(storage, session_id) == [first]
    last = await answered(storage, session_id)
    assert await shown(storage, session_id) == [first, last]


async def test_a_message_that_waits_follows_the_turn_before_it_and_leaves_another_path_shown(
    storage: EngineStore,
) -> None:
    session_id, first = await session(storage)
    running = await asked(storage, session_id, "")
    waits, edit = Turn(new_id(), session_id, "ada"), Turn(new_id(), session_id, "ada", parent=first)
    for each in (waits, edit):
        assert not await storage.turns.begin(each, each.turn_id, queue=True)
    await storage.sessions.move_leaf("ada", session_id, first)

    paths: list[list[str]] = []
    for turn in (running, waits):
        message = await storage.waiting.first(session_id)
        assert message is not None
        done = Done(turn.turn_id, DoneReason.STOP, Usage(), 1)
        ended = await storage.turns.finish(turn, None, done, None, Candidate(message.turn, message.version, None))
        assert ended.begun
        paths.append(await shown(storage, session_id))

    assert paths == [[first], [first, edit.turn_id]]
    assert (await storage.archive.turn("ada", waits.turn_id)).parent_turn_id == running.turn_id
    assert await storage.sessions.move_leaf("ada", session_id, running.turn_id) == waits.turn_id


async def test_the_question_of_a_turn_is_found_with_the_turn_before_it(storage: EngineStore) -> None:
    session_id, first = await session(storage)
    second = await answered(storage, session_id)
    await by_an_earlier_release(storage, first, second)

    found = [await storage.archive.question("ada", session_id, each) for each in (first, second)]

    assert [(each.text, each.parent_turn_id) for each in found] == [("first", ""), (second, first)]


async def test_calls_that_may_have_taken_effect_are_named(storage: EngineStore) -> None:
    session_id, _ = await session(storage)
    turn = await asked(storage, session_id)
    done, not_run, unknown, waits = (tool_call() for _ in range(4))
    await storage.add_round(turn, done, not_run, unknown, asked=[waits])
    await storage.calls.add_result(turn, done, msgspec.structs.replace(OUTCOME, attempts=1))
    await storage.calls.add_result(turn, not_run, ToolOutcome(CallState.CANCELLED))
    await storage.calls.add_result(turn, unknown, ToolOutcome(CallState.UNKNOWN))
    await storage.end(turn)
    later = await asked(storage, session_id)
    open_call = tool_call()
    await storage.add_round(later, open_call)

    async def named(turn_id: str, limit: int = 9) -> list[tuple[str, str]]:
        calls = await storage.archive.made_calls("ada", turn_id, limit)
        return [(each.call.correlation_id, each.execution_class) for each in calls]

    effects = [(each.correlation_id, "once") for each in (done, unknown, open_call)]
    assert await named(turn.turn_id) == effects
    assert await named(turn.turn_id, 1) == effects[:1]
    assert await named(later.turn_id) == effects[2:]
    await storage.end(later)
    elsewhere, other = await asked(storage, session_id, ""), tool_call()
    await storage.add_round(elsewhere, other)
    assert await named(turn.turn_id) == effects[:2], "the turns after it are on a path that is not shown"
    assert await named(elsewhere.turn_id) == [(other.correlation_id, "once")]


async def test_a_result_of_another_path_is_not_read(storage: EngineStore) -> None:
    session_id, _ = await session(storage)
    turn = await asked(storage, session_id)
    call = tool_call()
    await storage.add_round(turn, call)
    await storage.calls.add_result(turn, call, OUTCOME)
    await storage.end(turn)

    after = await asked(storage, session_id)
    assert await storage.results.result(after, call.correlation_id) is not None
    await storage.end(after)
    beside = await asked(storage, session_id, "")
    assert await storage.results.result(beside, call.correlation_id) is None
