"""A turn: the user sends a message, the answer is streamed, and the turn ends.

These files are the tutorial. Read them in order: each shows one concept. `FakeEngine` is an engine with fakes for the
model, the storage and the workers in this process; everything between them is the real code.
"""

from dialog_engine.model import DoneReason, MessageFinished, TextDelta, TurnStarted, Usage, UserMessage
from tests.marks import promise
from tests.support.fakes.engine import FakeEngine, done_of, text_of
from tests.support.fakes.models import ScriptedModel, says


async def test_an_answer_streams_word_by_word_and_is_then_stored_as_one_message() -> None:
    async with FakeEngine(ScriptedModel(says("Hello, my friend."))) as engine:
        turn = await engine.turns.start("ada", None, "Hello!")

        events = await engine.seen(turn)

    assert events[0] == TurnStarted(turn.turn_id, turn.session_id)
    assert events[1:4] == [TextDelta("Hello, "), TextDelta("my "), TextDelta("friend.")]
    match events[4:]:
        case [MessageFinished(message=message), done]:
            assert message.content == "Hello, my friend."
            assert done is done_of(events)
            assert done_of(events).reason is DoneReason.STOP
            assert done_of(events).usage == Usage(10, 5)
        case other:
            raise AssertionError(other)


async def test_the_next_turn_of_the_session_remembers_what_was_said() -> None:
    model = ScriptedModel(says("Hello, Ada."), says("You are Ada."))
    async with FakeEngine(model) as engine:
        first = await engine.turns.start("ada", None, "I am Ada.")
        await engine.seen(first)

        events = await engine.turn("Who am I?", first.session_id, subject="ada")

    assert text_of(events) == "You are Ada."
    said = [message.content for message in model.requests[1].messages]
    assert said == ["I am Ada.", "Hello, Ada.", "Who am I?"]
    assert isinstance(model.requests[1].messages[-1], UserMessage)


@promise("a turn ends without a client")
async def test_a_turn_runs_to_its_end_without_a_client() -> None:
    async with FakeEngine(ScriptedModel(says("There you are."))) as engine:
        turn = await engine.turns.start("ada", None, "Hello?")
        assert len(engine.turns) == 1

        await engine.turns.close(grace_seconds=5)

        assert engine.store.status(turn) == "done"
        assert len(engine.turns) == 0
