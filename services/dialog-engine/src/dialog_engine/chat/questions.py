"""Answers to questions of MCP servers. Any engine accepts them, for the turns of any engine."""

from dialog_engine.chat.parked import ParkedTurns
from dialog_engine.chat.ports import Control, Credentials
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.errors import CredentialRevokedError
from dialog_engine.model import QuestionStatus, Turn
from dialog_engine.tool_calls.questions.pending import Given, PendingQuestions
from dialog_engine.tool_calls.questions.rules import filled
from dialog_engine.tool_calls.questions.values import (
    AskedRound,
    FoundRound,
    QuestionAnsweredError,
    QuestionNotFoundError,
)


class Questions:
    """Accepts answers of users."""

    def __init__(
        self,
        pending: PendingQuestions,
        turns: RunningTurns,
        parked: ParkedTurns,
        control: Control,
        credentials: Credentials,
    ) -> None:
        self._pending = pending
        self._turns = turns
        self._parked = parked
        self._control = control
        self._credentials = credentials

    async def answer(self, sender: Turn, question_id: str, given: Given) -> tuple[AskedRound, int]:
        """Answer a question of a turn; `sender` has its id, and the subject and roles of the person. Idempotent. The
        round with the answer, and the place of the question in it.

        Raises:
            QuestionNotFoundError: the subject has no such question in this turn.
            QuestionAnsweredError: it was answered differently, or is over.
            AnswerRefusedError: the answer does not fit the form.
            IdempotencyKeyReusedError: the key of the request with the answer stands for another one.
            StorageUnavailableError: nothing can be committed now.
        """
        correlation_id, number, place = _parts(question_id)
        while True:
            found = await self._pending.store.find(sender.subject, sender.turn_id, correlation_id, number)
            if found is None or place > len(found.asked.asking.asked.questions):
                raise QuestionNotFoundError(f"turn {sender.turn_id} has no question {question_id}")
            if place in found.asked.answers or not found.is_running:
                return _as_before(found, place, given)
            if await self._credentials.revoked(found.credential):
                stands = {"status": QuestionStatus.WITHDRAWN}
                raise QuestionAnsweredError(f"the question is over: {CredentialRevokedError()}", stands)
            try:
                with self._turns.committing(sender.turn_id):
                    now = await self._pending.answer(sender, found, place, given, self._parked.resume)
            finally:
                self._control.decision()
            if now is not None:
                return _as_before(FoundRound(found.session_id, found.turn_id, now), place, given)


def _parts(question_id: str) -> tuple[str, int, int]:
    """The call, the round and the place of a question."""
    match question_id.split(":"):
        case [correlation_id, number, place] if all(
            each.isascii() and each.isdecimal() and int(each[:6]) > 0 for each in (number, place)
        ):
            return correlation_id, int(number[:6]), int(place[:6])
        case _:
            raise QuestionNotFoundError("there is no question with this id")


def _as_before(found: FoundRound, place: int, given: Given) -> tuple[AskedRound, int]:
    """The round, if what stands of the question is what was given."""
    asked, answer = found.asked, found.asked.answers.get(place)
    if answer is None:
        stands = {"status": QuestionStatus.WITHDRAWN}
        raise QuestionAnsweredError("the question is over: its turn or its call has ended", stands)
    content = filled(asked.asking.asked.questions[place - 1], given.content)[0]
    same = answer.status is not QuestionStatus.ANSWERED or answer.content == content
    if answer.status is given.status and same:
        return asked, place
    raise QuestionAnsweredError(f"the question was {answer.status} before", {"status": answer.status})
