"""Step 5, tool_execution: commit the calls of a round, wait for their results, commit each result."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial

import msgspec

from callstream_runtime.long_texts import LOOP_CHARACTERS
from dialog_engine.model import (
    AssistantMessage,
    CallAnswered,
    ChatEvent,
    MessageFinished,
    ToolCall,
    Turn,
)
from dialog_engine.sideband import SideBand, run_shielded
from dialog_engine.tool_calls.approvals.pending import PendingApprovals
from dialog_engine.tool_calls.bounded_validation import validating
from dialog_engine.tool_calls.local_tools import LocalTool, answered
from dialog_engine.tool_calls.people import Ran, Results, WaitingForPeople
from dialog_engine.tool_calls.pipeline import CallResult, TurnContext
from dialog_engine.tool_calls.planning import DEFAULT_LIMITS, CallLimits, calls_of_turn, has_no_tool, invalid, plan
from dialog_engine.tool_calls.ports import CallStore, ToolCalls, ToolSource
from dialog_engine.tool_calls.questions.pending import PendingQuestions
from dialog_engine.tool_calls.questions.values import AskedRound
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.results.texts import RESULT_MAX_CHARS, shorten, storable_outcome
from dialog_engine.tool_calls.values import Asked, OpenCall, Runnable, Unrunnable, timed
from plugins_contract.catalog import ApprovalPolicy, ToolEntry
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome


@dataclass(frozen=True, slots=True)
class _Plan:
    """The calls of one round. Each is answered, or open, or waits for approval, or for the client that runs it."""

    calls: Sequence[Runnable | Unrunnable]
    open_calls: Sequence[OpenCall]
    asked: Sequence[Asked]

    @property
    def answered(self) -> Sequence[Unrunnable]:
        """The calls that have their outcome before anything is committed."""
        return [each for each in self.calls if isinstance(each, Unrunnable)]

    @property
    def servers(self) -> dict[str, str]:
        """The servers of all calls whose tool is known, by correlation id."""
        return {each.call.correlation_id: each.tool.server for each in self.calls if each.tool}

    @property
    def titles(self) -> dict[str, str]:
        """What the servers call the tools of these calls, where they do, by correlation id."""
        return {each.call.correlation_id: each.tool.title for each in self.calls if each.tool and each.tool.title}


class ToolExecution:
    """Runs all calls of a round at the same time. A failure of a tool is a result like any other.

    A call that needs approval, or that the client runs, is committed without a request: there is nothing to relay.
    """

    def __init__(
        self, source: ToolSource, local: Sequence[LocalTool], rounds: "Rounds", limits: CallLimits = DEFAULT_LIMITS
    ) -> None:
        """`local` are the engine's own tools, beside those of the source."""
        self._source = source
        self._local = {tool.entry.name: tool for tool in local}
        self._own = {name: tool.entry for name, tool in self._local.items()}
        self._rounds = rounds
        self._limits = limits

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds one result per call, in their order. A call of the gateway now names the tool that it resolves to."""
        if not ctx.calls:
            return ctx
        planned = await self._planned(ctx)
        steps = Steps(ctx.turn, ctx.depth + 1, planned.servers)
        await run_shielded(self._commit(ctx, planned, steps))
        results = await self._rounds.await_results(
            ctx.turn, planned.open_calls, planned.asked, steps=steps, band=ctx.band
        )
        results |= {each.call.correlation_id: CallResult(each.call, each.outcome) for each in planned.answered}
        calls = tuple(each.call for each in planned.calls)
        return replace(ctx, calls=calls, results=tuple(results[call.correlation_id] for call in calls))

    async def _planned(self, ctx: TurnContext) -> _Plan:
        source = self._source.visible_to(ctx.turn.subject, ctx.turn.roles, ctx.turn.choice.tools)
        # The calls of a reply are decided together: the limit of time in the event loop holds for all of them.
        is_long = sum(len(call.arguments) for call in ctx.calls) > LOOP_CHARACTERS
        decided = await (asyncio.to_thread if is_long else validating)(self._decided, ctx, source)
        plans = await asyncio.gather(*map(partial(self._answered, ctx.turn), decided))
        open_calls: list[OpenCall] = []
        asked: list[Asked] = []
        of_client = ctx.turn.client_tools()
        for each in plans:
            if not isinstance(each, Runnable):
                continue
            tool = _as_asked(ctx.turn, each.tool)
            if each.tool == of_client.get(each.tool.name):
                asked.append(Asked(each.call, self._rounds.approvals.question_to_client(each.tool, each.arguments)))
            elif tool.approval is ApprovalPolicy.NEVER:
                request = self._rounds.calls.request(ctx.turn, each.call, each.tool, each.arguments)
                open_calls.append(OpenCall(each.call, request))
            else:
                asked.append(Asked(each.call, self._rounds.approvals.question(tool, each.arguments)))
        return _Plan(plans, open_calls, asked)

    def _decided(self, ctx: TurnContext, source: ToolSource) -> list[Runnable | Unrunnable]:
        """What is done with each call of the reply. Pure."""
        before, own = calls_of_turn(ctx.messages), calls_of_turn(ctx.messages, self._own.__contains__)
        tools = self._own | ctx.turn.client_tools()
        decided: list[Runnable | Unrunnable] = []
        for number, call in enumerate(ctx.calls):
            over = self._limits.refusal(number, before)
            if call.name in self._own:
                own += 1
                over = over or self._limits.refusal_of_own(own)
            decided.append(self._checked(ctx, source, tools, call, over))
        return decided

    async def _answered(self, turn: Turn, planned: Runnable | Unrunnable) -> Runnable | Unrunnable:
        """The call with its outcome, if it is not run, or if its tool is the engine's own."""
        if isinstance(planned, Runnable):
            local = self._local.get(planned.tool.name)
            planned = await answered(local, turn, planned) if local else planned
        if isinstance(planned, Runnable):
            return planned
        return replace(planned, outcome=timed(planned.outcome, planned.call.correlation_id))

    def _checked(
        self,
        ctx: TurnContext,
        source: ToolSource,
        tools: Mapping[str, ToolEntry],
        call: ToolCall,
        over: ToolOutcome | None,
    ) -> Runnable | Unrunnable:
        """What is done with a call. `tools` are those that are not in the catalog, by name."""
        planned = _fitting(ctx, source, tools, call, over)
        if isinstance(planned, Runnable) or planned.tool or has_no_tool(planned.outcome):
            return planned
        name = planned.call.tool_name
        known = tools.get(name) or self._source.find(name)
        return replace(planned, tool=known if isinstance(known, ToolEntry) else None)

    async def _commit(self, ctx: TurnContext, planned: _Plan, steps: Steps) -> None:
        """Commit the round, then emit its events: nothing is shown that is not stored."""
        message = AssistantMessage(ctx.reply.text, tuple(each.call for each in planned.calls), ctx.reply.reasoning)
        asked = {each.call.correlation_id: each for each in planned.asked}
        message_id = await self._rounds.store.add_round(
            ctx.turn,
            message,
            [each.request for each in planned.open_calls],
            {each.call.correlation_id: each.outcome for each in planned.answered},
            {correlation_id: each.question for correlation_id, each in asked.items()},
            planned.servers,
            planned.titles,
            cost=ctx.reply.usage,
            model=ctx.reply.model,
        )
        ctx.band.emit(MessageFinished(message_id, message))
        for each in planned.calls:
            waiting = asked.get(each.call.correlation_id)
            if waiting is None or not waiting.question.by_client:
                ctx.band.emit(steps.pending(each.call, planned.titles.get(each.call.correlation_id)))
            if isinstance(each, Unrunnable):
                if each.outcome.error is not None:
                    self._rounds.on_refused(ctx.turn, each.call, each.outcome.error)
                ctx.band.emit(steps.finished(each.call, each.outcome))
            elif waiting:
                ctx.band.emit(steps.asked(waiting))


def _fitting(
    ctx: TurnContext, source: ToolSource, tools: Mapping[str, ToolEntry], call: ToolCall, over: ToolOutcome | None
) -> Runnable | Unrunnable:
    if over:
        return Unrunnable(call, over)
    planned = plan(call, source, tools)
    if refusal := ctx.repeats.refusal(planned.call):
        return Unrunnable(planned.call, refusal)
    if problem := ctx.problems.get(call.correlation_id):
        return invalid(planned.call, problem)
    return planned


# --- Committed calls ---


@dataclass(frozen=True, slots=True)
class Rounds:
    """Waits for the results of committed calls and commits them, also after the turn was taken over from an engine."""

    store: CallStore
    calls: ToolCalls
    approvals: PendingApprovals
    questions: PendingQuestions
    result_max_chars: int = RESULT_MAX_CHARS
    """How many characters of a result the model is shown; see `shorten`."""
    on_refused: Callable[[Turn, ToolCall, ToolError], None] = lambda turn, call, error: None
    """Called for each call that is committed with an error and without a request."""

    async def add_result(self, turn: Turn, call: ToolCall, outcome: ToolOutcome) -> ToolOutcome:
        """Commit the outcome of a call. Returns it as it is shown: see `shorten`."""
        if not outcome.attempts:  # no worker ran the call
            outcome = timed(outcome, call.correlation_id)
        outcome = storable_outcome(outcome)
        shown, whole = shorten(outcome, call.correlation_id, self.result_max_chars)
        await self.store.add_result(turn, call, shown, whole)
        return shown

    async def await_results(
        self,
        turn: Turn,
        open_calls: Sequence[OpenCall],
        asked: Sequence[Asked],
        rounds: Sequence[AskedRound] = (),
        *,
        steps: Steps,
        band: SideBand,
        late: bool = False,
    ) -> Results:
        """Wait for every call, and commit each outcome before it is emitted. `late`: see `ToolCalls.run`. `rounds` are
        the calls whose servers ask.

        A call is open for a worker, which has its request, or for a person: those do not delay the others, and the turn
        is parked when there are no others. When this is cancelled, an outcome or a decision that is being committed is
        still committed and emitted.

        Raises:
            TurnParkedError: from `SideBand.park`.
        """
        if asked or rounds:
            return await self._with_people(turn, steps, band).results(open_calls, asked, rounds, late=late)
        ran = await self._run(turn, open_calls, steps, band.emit, late=late)
        if not ran.rounds:
            return ran.results
        people = self._with_people(turn, steps, band)
        return {**ran.results, **await people.results(ran.rest, (), ran.rounds, late=True)}

    def _with_people(self, turn: Turn, steps: Steps, band: SideBand) -> WaitingForPeople:
        async def run(open_calls: Sequence[OpenCall], late: bool) -> Ran:
            return await self._run(turn, open_calls, steps, band.emit, late=late)

        return WaitingForPeople(turn, steps, band, run, self.approvals, self.questions)

    async def _run(
        self,
        turn: Turn,
        open_calls: Sequence[OpenCall],
        steps: Steps,
        emit: Callable[[ChatEvent], None],
        *,
        late: bool,
    ) -> Ran:
        """Wait until each call has its outcome, or until the server of one asks: the rest is open then."""
        by_id = {open_call.request.correlation_id: open_call for open_call in open_calls}
        results: Results = {}

        async def add_answer(call: ToolCall, outcome: ToolOutcome) -> None:
            shown = await self.add_result(turn, call, outcome)
            results[call.correlation_id] = CallResult(call, shown)
            emit(steps.finished(call, shown))

        async with aclosing(self.calls.run([each.request for each in open_calls], late=late)) as updates:
            async for update in updates:
                open_call = by_id[update.correlation_id]
                if not isinstance(update, CallAnswered):
                    emit(steps.update(open_call.call, update))
                elif update.outcome.state is CallState.INPUT_REQUIRED:
                    asked = await run_shielded(self._ask(turn, open_call, update.outcome, steps, emit))
                    rest = [each for each in open_calls if each.call.correlation_id not in results]
                    return Ran(results, (asked,), [each for each in rest if each is not open_call])
                else:
                    await run_shielded(add_answer(open_call.call, update.outcome))
        return Ran(results)

    async def _ask(
        self, turn: Turn, of: OpenCall, outcome: ToolOutcome, steps: Steps, emit: Callable[[ChatEvent], None]
    ) -> AskedRound:
        asked = await self.questions.ask(turn, of.call, of.request, outcome)
        for step in asked.steps(steps.round):
            emit(step)
        return asked


def _as_asked(turn: Turn, tool: ToolEntry) -> ToolEntry:
    """The tool with the policy of the turn: its request may ask for approval, and not do without."""
    asks = turn.brought is not None and turn.brought.asks_for(tool.server, tool.tool)
    is_never = tool.approval is ApprovalPolicy.NEVER
    return msgspec.structs.replace(tool, approval=ApprovalPolicy.ALWAYS) if asks and is_never else tool
