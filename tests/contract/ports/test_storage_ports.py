"""TurnStore, CallStore, History and Outbox: one suite for SQLite and for PostgreSQL."""

from dataclasses import replace

from dialog_engine.chat.history import Memory
from dialog_engine.chat.ports import Ended
from dialog_engine.model import (
    AssistantMessage,
    Choice,
    Done,
    DoneReason,
    Leaving,
    ToolCall,
    ToolMessage,
    Turn,
    Usage,
    UserMessage,
)
from dialog_engine.tool_calls.ports import KeptResult
from dialog_engine.tool_calls.values import OpenCall, WholeResult
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import EVENT_TYPE, ToolCallRequested, new_id
from plugins_contract.outcomes import CallState, MediaBlock, TextBlock, ToolOutcome
from tests.marks import promise
from tests.support.beginnings import begin
from tests.support.engine_stores import EngineStore
from tests.support.fakes.worker import FakeWorker, failed, succeeded, tool

REFUSED = ToolOutcome.failure(CallState.FAILED, ErrorCode.TOOL_NOT_FOUND, "no such tool")


def done(turn: Turn, reason: DoneReason = DoneReason.STOP) -> Done:
    return Done(turn.turn_id, reason, Usage(1, 2), 3)


def call(number: int, name: str = "a__b") -> ToolCall:
    return ToolCall(f"call_{number}", new_id(), name, '{"x": 1}')


def asked(turn: Turn, *calls: ToolCall) -> list[ToolCallRequested]:
    return [FakeWorker().request(turn, each, tool(each.name), {"x": 1}) for each in calls]


async def begun(storage: EngineStore, text: str = "Hello!", session_id: str | None = None) -> Turn:
    return await begin(storage.turns, "ada", session_id, text, "00-trace")


async def test_a_turn_ends_with_its_answer_and_the_session_is_free_again(storage: EngineStore) -> None:
    turn = await begun(storage)
    assert (turn.subject, turn.epoch, turn.rounds, turn.traceparent) == ("ada", 1, 0, "00-trace")
    answer = AssistantMessage("Hello, Ada.", reasoning="hm", interrupted=True)

    ended = await storage.turns.finish(turn, answer, done(turn, DoneReason.CANCELLED), None)

    assert isinstance(ended.message_id, int)
    await begun(storage, "Again!", turn.session_id)
    said = await storage.messages(turn.session_id)
    assert said == [UserMessage("Hello!"), answer, UserMessage("Again!")]


async def test_a_turn_that_was_parked_stays_asleep_until_it_is_read(storage: EngineStore) -> None:
    turn = Turn(new_id(), new_id(), "ada", leaving=Leaving(2.5))
    await storage.turns.begin(turn, "Hi", new_session=True)
    for _ in range(2):
        await storage.change("UPDATE turns SET owner = ''")
        taken = await storage.parked.take(turn.turn_id)
        assert taken
        [adopted] = await storage.engines.adopt_own(None)
        assert taken.leaving == adopted.turn.leaving == Leaving(2.5, asleep=True)


async def test_a_turn_ends_once(storage: EngineStore) -> None:
    turn = await begun(storage)
    await storage.turns.finish(turn, AssistantMessage("first"), done(turn), None)

    assert await storage.turns.finish(turn, AssistantMessage("second"), done(turn), None) == Ended(None)
    assert [m.content for m in await storage.messages(turn.session_id)] == ["Hello!", "first"]
    assert await waiting(storage) == [("TurnFinished", turn.turn_id)]


@promise("a stopped reply is counted: what was reported, the rest as an estimate that is marked")
@promise("a turn says how many calls it had, also after a restart")
async def test_the_next_life_finds_the_turns_that_run_and_no_others(storage: EngineStore) -> None:
    ended, choice = await begun(storage, "one"), Choice("openai:x", "native")
    running = Turn(new_id(), new_id(), "ada", traceparent="00-trace", choice=choice, roles=("a", "b"), credential="key")
    await storage.turns.begin(running, "two", new_session=True)
    await storage.turns.finish(ended, None, done(ended), None)
    await storage.calls.add_round(running, AssistantMessage("", (call(1),)), [], {}, cost=Usage(5, 2, True, 3, 1, 1))
    await storage.calls.add_round(running, AssistantMessage("", (call(2),)), [], {}, cost=Usage(9, 1, False, 4, 2, 1))

    [left] = await storage.engines.adopt_own(None)
    [later] = await storage.engines.adopt_own(None)

    spent = Usage(14, 3, True, 7, 3, 2)
    assert left.turn == replace(running, epoch=2, rounds=2, usage=spent, calls=2)
    assert later.turn == replace(left.turn, epoch=3)


@promise("a conversation says the same after a reload as live, with the same parts open")
async def test_what_was_shown_beside_the_texts_of_a_turn_is_kept(storage: EngineStore) -> None:
    turn = await begun(storage)
    message = AssistantMessage("", (one := call(1),), "hm")
    await storage.calls.add_round(turn, message, [], {one.correlation_id: REFUSED}, titles={one.correlation_id: "One"})
    used = Usage(9, 8, False, 3, 2, 1)
    await storage.turns.finish(turn, None, replace(done(turn), left_out=3, usage=used), None)

    found = await storage.archive.transcript("ada", turn.session_id, limit=9)
    [_, shown], [ended] = found.page.messages, found.turns
    assert (shown.reasoning, shown.calls[0].title, ended.left_out, ended.usage) == ("hm", "One", 3, used)


@promise("tools of the engine's own are answered without a worker, and shown and stored like any other")
@promise("a call through the gateway is that of the tool it means, for users, workers and approvals, in every life")
async def test_a_round_is_read_back_with_what_each_call_means_and_what_is_open_of_it(storage: EngineStore) -> None:
    earlier = await begun(storage)
    await storage.turns.finish(earlier, AssistantMessage("Hello."), done(earlier), None)
    turn = await begun(storage, "More!", earlier.session_id)
    one, refused, local = call(1), call(2, "a__nope"), call(3, "read_result")
    meant = ToolCall("call_4", new_id(), "mcp_query", "{}", {"extra_content": {"signature": "x"}}, tool="a__b")
    message, requests = AssistantMessage("Let me see.", (one, refused, local, meant), "hm"), asked(turn, one, meant)
    answers = {refused.correlation_id: REFUSED, local.correlation_id: succeeded("here")}

    number = await storage.calls.add_round(
        turn, message, requests, answers, servers={local.correlation_id: "callstream"}
    )
    kept = replace(meant, extra=None)
    assert [*(await storage.archive.open_calls(turn)).requested] == [
        OpenCall(one, requests[0]),
        OpenCall(kept, requests[1]),
    ]
    assert [*(await storage.archive.open_calls(await begun(storage, "another"))).requested] == []
    assert await storage.calls.add_result(turn, meant, succeeded("second"))
    assert [opened.call for opened in (await storage.archive.open_calls(turn)).requested] == [one]

    [question, answer] = await storage.archive.turn_messages(turn.turn_id)
    assert (question.role, question.content, question.calls) == ("user", "More!", ())
    assert (answer.message_id, answer.turn_id, answer.role) == (number, turn.turn_id, "assistant")
    assert [(each.call, each.server, each.outcome) for each in answer.calls] == [
        (one, "a", None), (refused, "", REFUSED), (local, "callstream", succeeded("here")),
        (meant, "mcp_query", succeeded("second")),
    ]  # fmt: skip

    # Results stand in the order of the calls, whatever came first.
    assert await storage.calls.add_result(turn, one, failed("first"))
    assert (await storage.messages(turn.session_id))[3:] == [
        message,
        ToolMessage("call_1", "a__b", "Error TOOL_EXECUTION_FAILED: first", failed=True),
        ToolMessage("call_2", "a__nope", "Error TOOL_NOT_FOUND: no such tool", failed=True),
        ToolMessage("call_3", "read_result", "here"),
        ToolMessage("call_4", "mcp_query", "second"),
    ]


async def test_a_result_is_read_back_with_its_images(storage: EngineStore) -> None:
    turn, one, image = await begun(storage), call(1), MediaBlock("image/png", "AAAA")
    await storage.calls.add_round(turn, AssistantMessage("", (one,)), asked(turn, one), {})

    await storage.calls.add_result(turn, one, ToolOutcome(CallState.SUCCEEDED, (TextBlock("Click."), image)))

    (*_, result), _ = await storage.said(turn.session_id, Memory(1000, 1_000_000))
    assert result == ToolMessage("call_1", "a__b", "Click.\n[image/png, shown to the user]", (image,))


@promise("large results are paged through with a tool")
async def test_the_whole_of_a_result_is_kept_beside_what_is_shown_of_it(storage: EngineStore) -> None:
    turn, one, two = await begun(storage), call(1), call(2)
    await storage.calls.add_round(turn, AssistantMessage("", (one, two)), asked(turn, one, two), {})
    shown, whole = succeeded("he…le"), WholeResult("the whole, ü\n\0", "and for the user")
    name = one.correlation_id[-8:]
    assert await storage.results.result(turn, name) is None

    await storage.calls.add_result(turn, one, shown, whole)
    assert not await storage.calls.add_result(turn, one, succeeded("later"), WholeResult("later"))
    await storage.calls.add_result(turn, two, succeeded("short"))

    kept = KeptResult(one.correlation_id, "a__b", whole)
    assert await storage.results.result(turn, name) == kept
    assert await storage.results.result(turn, one.correlation_id) == kept
    uncut = KeptResult(two.correlation_id, "a__b", WholeResult("short"))
    assert await storage.results.result(turn, two.correlation_id) == uncut
    assert await storage.results.cut_results(turn) == [(one.correlation_id, "a__b")]

    # It is found in its own session, by its own name and for its own user.
    for stranger in (await begun(storage), replace(turn, subject="bob")):
        assert await storage.results.result(stranger, one.correlation_id) is None
        assert await storage.results.cut_results(stranger) == []
    for name in ("", one.correlation_id[-7:], "%" * 8, "_" * 8, one.correlation_id[:8]):
        assert await storage.results.result(turn, name) is None


async def waiting(storage: EngineStore) -> list[tuple[str, str]]:
    return [(row.event_type, row.event_id) for row in await storage.outbox.waiting(100)]


@promise("I8 an outbox row lives until its call is answered")
async def test_a_request_waits_in_the_outbox_until_it_is_published_and_goes_when_it_is_answered(
    storage: EngineStore,
) -> None:
    turn = await begun(storage)
    one, two = call(1), call(2)
    await storage.calls.add_round(turn, AssistantMessage("", (one, two)), asked(turn, one, two), {})
    assert await waiting(storage) == [(EVENT_TYPE, one.correlation_id), (EVENT_TYPE, two.correlation_id)]

    outbox = storage.outbox
    await outbox.published(await outbox.waiting(1))
    assert await waiting(storage) == [(EVENT_TYPE, two.correlation_id)]
    assert [opened.call for opened in (await storage.archive.open_calls(turn)).requested] == [one, two]
    unpublished = await outbox.calls([one.correlation_id, two.correlation_id])
    assert [row.event_id for row in unpublished] == [two.correlation_id]
    assert [*await outbox.calls([])] == []

    await storage.calls.add_result(turn, two, succeeded("x"))
    assert await waiting(storage) == [("ToolCallFinished", two.correlation_id)]


async def test_a_published_fact_is_gone_and_a_postponed_row_waits_by_itself(storage: EngineStore) -> None:
    turn, other = await begun(storage, "one"), await begun(storage, "two")
    for each in (turn, other):
        await storage.turns.finish(each, None, done(each), None)
    outbox = storage.outbox
    first, second = await outbox.waiting(2)

    await outbox.postpone(first, "why", 60_000)
    assert [row.seq for row in await outbox.waiting(100)] == [second.seq]
    await outbox.postpone(second, "why", 0)
    [again] = await outbox.waiting(100)
    assert again.attempts == 1
    await outbox.published([again])
    assert await waiting(storage) == []
