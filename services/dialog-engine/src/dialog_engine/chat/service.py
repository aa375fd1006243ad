"""The events of a turn, from the user's message to `done`."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from dialog_engine.chat.history import Memory, newest_said, recent
from dialog_engine.chat.ports import History, TurnStore
from dialog_engine.chat.replay import answers, replay
from dialog_engine.chat.waiting_messages import Candidate
from dialog_engine.model import (
    AnsweredBy,
    ApprovalStatus,
    ApprovalStep,
    AssistantMessage,
    ChatEvent,
    ChatRequest,
    Done,
    DoneReason,
    FinishReason,
    Message,
    MessageFinished,
    QuestionStatus,
    QuestionStep,
    ReasoningDelta,
    Reset,
    ResourceUpdated,
    RoundComplete,
    StreamEnd,
    TextDelta,
    TokensSpent,
    ToolCallEvent,
    ToolStep,
    Turn,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    Usage,
    WaitingForUser,
    WaitsFor,
    Withdrawn,
)
from dialog_engine.sideband import SideBand, TextBuffer
from dialog_engine.tool_calls.approvals.rules import STOPPED, stopped
from dialog_engine.tool_calls.execution import Rounds
from dialog_engine.tool_calls.pipeline import EnhancedChat
from dialog_engine.tool_calls.ports import ApprovalStore
from dialog_engine.tool_calls.questions.values import AskedRound
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import Asked, OpenCall, timed

Emit = Callable[[TurnEvent], None]
"""Passes an event on to the user."""


@dataclass(slots=True)
class Draft:
    """The message that is being streamed, and the state of the turn so far. Written by one turn."""

    started: float = field(default_factory=time.monotonic)
    text: TextBuffer = field(default_factory=TextBuffer)
    reasoning: TextBuffer = field(default_factory=TextBuffer)
    usage: Usage = Usage()
    by_model: dict[str, Usage] = field(default_factory=dict[str, Usage])
    """The part of `usage` whose model is known."""
    calls: int = 0
    """The tool calls of all epochs of the turn."""
    ttft_ms: int | None = None
    round: int = 1
    """The last round of tool calls in this life of the turn."""
    reason: DoneReason = DoneReason.STOP
    """Why the model stopped."""
    answered_by: AnsweredBy | None = None
    """The model that answered last, and what it was not sent."""
    asked: dict[str, str] = field(default_factory=dict[str, str])
    """The calls and questions that wait for people by the events so far, by id. For a decision: its hash, if known."""
    is_parked: bool = False
    """Whether the turn was parked, and its readers have not seen that its round is complete."""

    @classmethod
    def of(cls, turn: Turn, waited: Mapping[str, str] | None = None) -> "Draft":
        """That of a turn which begins, or goes on after an earlier epoch. A parked one has `waited` for this."""
        spent = {turn.model: turn.usage} if turn.model else {}
        draft = cls(usage=turn.usage, by_model=spent, calls=turn.calls, ttft_ms=turn.ttft_ms)
        draft.asked, draft.is_parked = dict(waited or {}), waited is not None
        return draft

    def follow(self, event: TurnEvent | ChatEvent) -> None:
        """Update the state from `event`."""
        match event:
            case TextDelta(piece):
                self.text.add(piece)
                self._first_token()
            case ReasoningDelta(piece):
                self.reasoning.add(piece)
                self._first_token()
            case MessageFinished(message=message):
                self.text, self.reasoning = TextBuffer(), TextBuffer()
                self.calls += len(message.tool_calls)
            case ToolStep(status, call, round=number, details=details):
                self.round = number
                if details.get("waitsFor") == WaitsFor.CLIENT:
                    self.asked[call.correlation_id] = ""
                elif status.final:
                    self.asked.pop(call.correlation_id, None)
            case ApprovalStep(ApprovalStatus.ASKED, call, details=details):
                self.asked[call.correlation_id] = details.get("hash", "")
            case QuestionStep(QuestionStatus.ASKED, details=details):
                self.asked[details["questionId"]] = ""
            case ApprovalStep(call=call):
                self.asked.pop(call.correlation_id, None)
            case QuestionStep(details=details):
                self.asked.pop(details["questionId"], None)
            case Reset(events=so_far):
                self.asked.clear()
                for each in [e for e in so_far if isinstance(e, (ToolStep, ApprovalStep, QuestionStep))]:
                    self.follow(each)
            case RoundComplete():
                self.is_parked = False
            case AnsweredBy():
                self.answered_by = event
            case TokensSpent(usage):
                self._spent(usage)
            case StreamEnd(finish, usage):
                self.reason = DoneReason.STOP if finish is FinishReason.TOOL_CALLS else DoneReason(finish)
                self._spent(usage)
            case (
                WaitingForUser()
                | ResourceUpdated()
                | ToolCallEvent()
                | TurnStarted()
                | Withdrawn()
                | TurnFailed()
                | Done()
            ):
                pass

    @property
    def model(self) -> str | None:
        """The model that answered last."""
        return self.answered_by.model if self.answered_by else None

    def message(self, *, interrupted: bool) -> AssistantMessage | None:
        """The message so far; None when it was interrupted before any text and any reasoning."""
        text, reasoning = str(self.text), str(self.reasoning)
        if interrupted and not text.strip() and not reasoning.strip():
            return None
        return AssistantMessage(text, reasoning=reasoning, interrupted=interrupted)

    def done(self, turn_id: str, reason: DoneReason) -> Done:
        """The last event, if the turn ends now."""
        by_model = dict(self.by_model)
        left_out = self.answered_by.left_out if self.answered_by else 0
        elapsed = self._elapsed_ms()
        return Done(turn_id, reason, self.usage, self.ttft_ms, self.model, self.calls, elapsed, by_model, left_out)

    def _spent(self, usage: Usage) -> None:
        if self.model:
            self.by_model[self.model] = self.by_model.get(self.model, Usage()) + (usage - self.usage)
        self.usage = usage

    def _first_token(self) -> None:
        if self.ttft_ms is None:
            self.ttft_ms = self._elapsed_ms()

    def _elapsed_ms(self) -> int:
        return round((time.monotonic() - self.started) * 1000)


class ChatService:
    """Answers users. `llm` is a chat client that is enhanced with tools."""

    def __init__(
        self,
        llm: EnhancedChat,
        *,
        turns: TurnStore,
        history: History,
        approvals: ApprovalStore,
        rounds: Rounds,
        memory: Memory,
    ) -> None:
        self._llm = llm
        self._turns = turns
        self._history = history
        self._approvals = approvals
        self._rounds = rounds
        self._memory = memory

    async def reset(self, turn: Turn) -> Reset:
        """What follows on the start of a turn that goes on after an earlier epoch: everything that was committed."""
        return Reset(turn.resumed, replay(turn.turn_id, await self._history.turn_messages(turn.turn_id)))

    async def reply(self, turn: Turn, draft: Draft, band: SideBand, said: Sequence[Message] | None = None) -> StreamEnd:
        """Emit the events of `turn` between its start and its end. `end` must follow, whether or not this raises.

        A turn that an earlier life left unfinished is resumed: finished tools are not run again, open calls are waited
        for, an interrupted message is generated again. `said` is the history of its session, where that is known. The
        turn may still be committed when this begins: see `SideBand.ready`.

        Raises:
            LLMError: the model could not be reached or refused.
            StorageUnavailableError: a round or a result could not be committed.
        """
        if turn.rounds:
            await self._open_calls(turn, draft, band)
        return await self._llm.answer(await self._request(turn, said), band)

    async def end(
        self,
        turn: Turn,
        draft: Draft,
        emit: Emit,
        reason: DoneReason,
        failure: TurnFailed | None = None,
        candidate: Candidate | None = None,
    ) -> bool:
        """The end of `turn`: the outcome of each call that is still open, the last message, `done`. Whether the turn of
        the `candidate`, the message that is next, has begun with it.

        Each event is committed before it is emitted. Calling this again does what is missing.

        Raises:
            StorageUnavailableError: it cannot be committed now.
        """
        cut = reason in (DoneReason.CANCELLED, DoneReason.ERROR)
        if cut:
            await self._cancelled_calls(turn, draft, emit, failure)
        message = draft.message(interrupted=cut)
        done = draft.done(turn.turn_id, reason)
        ended = await self._turns.finish(turn, message, done, failure, candidate)
        if message is not None and ended.message_id is not None:
            emit(MessageFinished(ended.message_id, message))
        if failure is not None:
            emit(failure)
        emit(done)
        return ended.begun

    async def _cancelled_calls(self, turn: Turn, draft: Draft, emit: Emit, failure: TurnFailed | None) -> None:
        why = failure.message if failure else STOPPED
        # First: from here on no call can be approved, so no more calls are opened.
        unapproved = await self._approvals.close(
            turn, lambda asked: timed(stopped(asked, why), asked.call.correlation_id)
        )
        unanswered = await self._rounds.questions.close(turn, why)
        open_calls = (await self._history.open_calls(turn)).requested
        for answer in await self._late_answers(turn, draft, [a for a, _ in unapproved], [r for r, _ in unanswered]):
            emit(answer)
        if not open_calls and not unapproved and not unanswered:
            return
        closed = _servers(open_calls, [each for each, _ in unapproved], [each for each, _ in unanswered])
        steps = Steps(turn, max(draft.round, turn.rounds), closed)
        for asked_round, outcome in unanswered:
            for step in asked_round.steps(steps.round):
                emit(step)
            emit(steps.finished(asked_round.call, outcome))
        for asked, outcome in unapproved:
            emit(steps.finished(asked.call, outcome))
        outcomes = await self._rounds.calls.cancel([open_call.request for open_call in open_calls])
        for open_call in open_calls:
            outcome = await self._rounds.add_result(turn, open_call.call, outcomes[open_call.request.correlation_id])
            emit(steps.finished(open_call.call, outcome))

    async def _late_answers(
        self, turn: Turn, draft: Draft, asked: Iterable[Asked], rounds: Iterable[AskedRound]
    ) -> Sequence[ApprovalStep | QuestionStep | ToolStep]:
        """How people have answered what the turn shows as open and is not `asked` any more, nor in the `rounds`."""
        questions = {question for each in rounds for question in each.open_questions}
        still_open = questions | {each.call.correlation_id for each in asked}
        if not (closed := draft.asked.keys() - still_open):
            return ()
        return [*answers(closed, replay(turn.turn_id, await self._history.turn_messages(turn.turn_id)))]

    async def _request(self, turn: Turn, said: Sequence[Message] | None) -> ChatRequest:
        if said is None:
            kept, left_out = await newest_said(self._history, turn.session_id, turn.turn_id, self._memory)
        else:
            kept, left_out = recent(said, self._memory), 0
        return ChatRequest(kept, turn, left_out=left_out)

    async def _open_calls(self, turn: Turn, draft: Draft, band: SideBand) -> None:
        found = await self._history.open_calls(turn)
        requested, asked, rounds = found.requested, found.asked, found.rounds
        late = await self._late_answers(turn, draft, asked, rounds)
        if not (requested or asked or rounds or late or draft.is_parked):
            return
        for answer in late:
            band.emit(answer)
        steps = Steps(turn, turn.rounds, _servers(requested, asked, rounds))
        for each in asked:
            if draft.asked.get(each.call.correlation_id) not in (None, "", each.question.hash):
                band.emit(steps.asked(each))  # the tool has changed since
        await self._rounds.await_results(turn, requested, asked, rounds, steps=steps, band=band, late=True)
        band.emit(RoundComplete(turn.rounds))


def _servers(open_calls: Sequence[OpenCall], asked: Sequence[Asked], rounds: Sequence[AskedRound]) -> dict[str, str]:
    servers = {each.call.correlation_id: each.request.server for each in open_calls}
    servers |= {each.call.correlation_id: each.asking.server for each in rounds}
    return servers | {each.call.correlation_id: each.question.server for each in asked}
