"""Turns that are parked: they wait for people only, and nothing of them is in any engine.

An answer, a Stop and *decline and send* give such a turn to the engine that commits them. What nobody commits each
engine looks for once a second: a question that has expired, a revoked key, an erasure. Turns that were not parked
because an engine of an earlier release lived are parked when the last of these is gone.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from callstream_runtime.outage_log import OutageLog
from dialog_engine.chat.ports import Control, Credentials, TurnLimits
from dialog_engine.chat.requests import StartingRequest
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import StorageUnavailableError, TurnRunningError
from dialog_engine.model import ApprovalStatus, QuestionStatus, Turn, TurnEvent
from dialog_engine.sideband import run_shielded
from dialog_engine.tool_calls.questions.pending import PendingQuestions
from dialog_engine.tool_calls.questions.values import Answer, AskedRound
from dialog_engine.tool_calls.results.steps import Steps
from dialog_engine.tool_calls.values import Asked, Decision
from plugins_contract.outcomes import ToolOutcome

log = logging.getLogger(__name__)

TAKEN_AT_ONCE = 50
"""How many turns one look takes up at most, so that several engines share them."""
CREDENTIALS_AT_ONCE = 1_000
"""How many credentials of parked turns one look checks. The next look goes on behind them."""
DECLINED = "the user sent another message instead"


@dataclass(frozen=True, slots=True)
class Declined:
    """The open questions of a turn were refused, the turn is stopped, and the message that was sent instead is next.

    `taken` is the turn, if it was parked: it is this engine's now.
    """

    turn_id: str
    taken: Turn | None
    refused: Sequence[tuple[Asked, ToolOutcome]]
    rounds: Sequence[tuple[AskedRound, ToolOutcome]]

    def events(self, turn: Turn, decision: Decision) -> list[TurnEvent]:
        """What the readers of the turn have not seen."""
        servers = {each.call.correlation_id: each.question.server for each, _ in self.refused}
        servers |= {each.call.correlation_id: each.asking.server for each, _ in self.rounds}
        steps = Steps(turn, turn.rounds, servers)
        found: list[TurnEvent] = []
        for each, outcome in self.refused:
            found += [] if each.question.by_client else [steps.decided(each.call, decision)]
            found += [steps.finished(each.call, outcome)]
        for each, outcome in self.rounds:
            found += [*each.steps(turn.rounds), steps.finished(each.call, outcome)]
        return found


class ParkedStore(Protocol):
    """The parked turns in the store. Every method raises StorageUnavailableError."""

    async def park(self, turn: Turn, shown: Mapping[str, str], ttft_ms: int | None) -> bool:
        """Park a turn of this engine. False when it has to wait here: one of its calls is not for a person, its open
        questions are not those that its readers were `shown` (by correlation id their hashes), its user has stopped it,
        or an engine of a release that does not know parked turns shares the store.

        Raises:
            TurnFencedError: another engine runs the turn.
        """
        ...

    async def open_questions(self, turn_id: str) -> Sequence[Asked | AskedRound]:
        """The open calls of a turn, when all of them are for people; otherwise none."""
        ...

    async def take(self, turn_id: str, *, stop: bool = False) -> Turn | None:
        """Give a parked turn to this engine, with a request to `stop` it. None when it is not parked."""
        ...

    async def due(self, now_ms: int, limit: int) -> Sequence[tuple[str, bool]]:
        """The parked turns with a question that has expired at `now_ms`, Unix milliseconds on the clock of Redis, and
        those of sessions that are to be erased, which are to be stopped: True."""
        ...

    async def credentials(self, after: str, limit: int) -> Sequence[str]:
        """The credentials that began parked turns, in their order."""
        ...

    async def of_credential(self, credential: str, limit: int) -> Sequence[str]:
        """The parked turns that it began."""
        ...

    async def decline(
        self,
        sender: Turn,
        text: str,
        decision: Decision,
        answer: Answer,
        *,
        request: StartingRequest = StartingRequest(),
    ) -> Declined | None:
        """Refuse what is open in the running turn of the sender's session, with the decision for approvals and the
        answer for questions, stop it, and let the message wait as the next one: in one transaction. None when no turn
        runs there, or it does not wait for people only.

        Raises:
            EngineError: as `TurnStore.begin` with `queue`.
        """
        ...


class ParkedTurns:
    """The parked turns, as one engine sees them, and how they go on."""

    def __init__(
        self,
        store: ParkedStore,
        turns: RunningTurns,
        limits: TurnLimits,
        credentials: Credentials,
        control: Control,
        questions: PendingQuestions,
        *,
        now_ms: Callable[[], int],
        may_park: Callable[[], bool] = lambda: True,
        look_seconds: float = 1.0,
        note: Callable[[ApprovalStatus], None] = lambda _: None,
    ) -> None:
        """`now_ms` is the clock of Redis. `may_park`: whether no engine of an earlier release lives. `note` is called
        with each decision that is committed here."""
        self._store = store
        self._turns = turns
        self._limits = limits
        self._credentials = credentials
        self._control = control
        self._questions = questions
        self._now_ms = now_ms
        self._may_park = may_park
        self._look_seconds = look_seconds
        self._note = note
        self._checked = ""
        self._outages = OutageLog(log, "looking for parked turns")

    def resume(self, turn: Turn, unseen: Sequence[TurnEvent] = (), *, stopped: bool = False) -> None:
        """Go on with a turn that was parked and is this engine's now, and count it among those of its subject, however
        many run. Its readers have not seen `unseen`."""
        self._turns.run(turn, stopped=stopped, unseen=unseen)
        self._limits.count_until_end(self._limits.resumed(turn.subject), turn, self._turns.when_ended)

    async def run(self) -> None:
        """Take up turns that go on without anybody's doing. Runs until cancelled."""
        while True:
            await asyncio.sleep(self._look_seconds * random.uniform(0.75, 1.0))
            try:
                await self._look()
            except StorageUnavailableError as error:
                self._outages.failed(error)
            else:
                self._outages.worked()

    async def _look(self) -> None:
        if self._may_park():
            await self._turns.park_again()
        for turn_id, stop in await self._store.due(self._now_ms(), TAKEN_AT_ONCE):
            await run_shielded(self._take_up(turn_id, stop))
        for turn_id in await self._questions.removed():
            await run_shielded(self._take_up(turn_id, False))  # which withdraws them
        found = await self._store.credentials(self._checked, CREDENTIALS_AT_ONCE)
        self._checked = found[-1] if len(found) == CREDENTIALS_AT_ONCE else ""
        for credential in found:
            if await self._credentials.revoked(credential):
                for turn_id in await self._store.of_credential(credential, TAKEN_AT_ONCE):
                    await run_shielded(self._take_up(turn_id, False))  # which ends it

    async def _take_up(self, turn_id: str, stop: bool) -> None:
        if self._turns.queue.closed:
            return
        with self._turns.committing(turn_id):
            if turn := await self._store.take(turn_id, stop=stop):
                self.resume(turn, stopped=stop)

    async def refusal(self, error: TurnRunningError) -> TurnRunningError:
        """The error with what the running turn asks its user, if it waits for nothing else."""
        waits_for = await self.waits_for(error.turn_id)
        return TurnRunningError(error.turn_id, waits_for) if waits_for else error

    async def waits_for(self, turn_id: str) -> list[dict[str, str]]:
        """What a running turn asks its user, and where to answer; nothing where it waits for something else."""
        return [named for each in await self._store.open_questions(turn_id) for named in _named(turn_id, each)]

    async def decline(self, sender: Turn, text: str, request: StartingRequest) -> bool:
        """Do what `ParkedStore.decline` says. False when there is nothing to decline. Raises as that."""
        return await run_shielded(self._decline(sender, text, request))

    async def _decline(self, sender: Turn, text: str, request: StartingRequest) -> bool:
        now, key_id = self._now_ms(), sender.key_id
        decision = Decision(status=ApprovalStatus.REFUSED, at=now, reason=DECLINED, key_id=key_id)
        answer = Answer(QuestionStatus.DECLINED, now, key_id=key_id, reason=DECLINED)
        declined = await self._store.decline(sender, text, decision, answer, request=request)
        if declined is None:
            return False
        for asked, _ in declined.refused:
            if not asked.question.by_client:
                self._note(decision.status)
        self._questions.note_ends(declined.rounds, answer)
        if declined.taken:
            self.resume(declined.taken, declined.events(declined.taken, decision), stopped=True)
        else:
            self._turns.stop(declined.turn_id)
            self._control.stop(declined.turn_id)
        return True


def _named(turn_id: str, open_for: Asked | AskedRound) -> list[dict[str, str]]:
    """What a call asks its user, and where to answer."""
    call = open_for.call
    ids = {"toolCallId": call.tool_call_id, "correlationId": call.correlation_id, "toolName": call.tool_name}
    if isinstance(open_for, Asked) and open_for.question.by_client:
        url = f"/v1/turns/{turn_id}/tool-calls/{call.correlation_id}/result"
        return [{"kind": "clientTool", **ids, "answerUrl": url}]
    if isinstance(open_for, Asked):
        return [{"kind": "approval", **ids, "answerUrl": f"/v1/turns/{turn_id}/approvals/{call.correlation_id}"}]
    places = range(1, 1 + len(open_for.asking.asked.questions))
    asked = [open_for.question_id(place) for place in places if place not in open_for.answers]
    return [
        {"kind": "question", **ids, "questionId": each, "answerUrl": f"/v1/turns/{turn_id}/questions/{each}"}
        for each in asked
    ]
