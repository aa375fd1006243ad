"""A round of a call that its server has ended with questions, their answers, and where both are stored."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import urlsplit

import msgspec

from dialog_engine.errors import EngineError
from dialog_engine.model import QuestionStatus, QuestionStep, ToolCall, Turn
from dialog_engine.tool_calls.results.steps import rfc3339
from dialog_engine.tool_calls.values import AnswerKey, Committed
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import ToolOutcome
from plugins_contract.questions import InputRequired, ServerQuestion, round_id


class QuestionError(EngineError):
    """An answer cannot be taken. The text says why."""

    code = "QUESTION_CLOSED"


class QuestionNotFoundError(QuestionError):
    """The turn has no such question."""

    code = "QUESTION_NOT_FOUND"


class QuestionAnsweredError(QuestionError):
    """It was answered before, and differently, or is over. `stands` says so in JSON."""

    code = "QUESTION_ANSWERED"

    def __init__(self, message: str, stands: Mapping[str, object]) -> None:
        super().__init__(message)
        self.stands = stands


class AnswerRefusedError(QuestionError):
    """The answer does not fit the form. The question stays open. `problems` are by the name of the field."""

    code = "ANSWER_REFUSED"

    def __init__(self, problems: Mapping[str, str]) -> None:
        super().__init__("the answer does not fit the form")
        self.problems = problems


class Answer(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """How one question ended, at Unix milliseconds on the clock of Redis. `content` is that of a form, and `reason` why
    it ended without an answer."""

    status: QuestionStatus
    at: int
    content: dict[str, Any] | None = None
    key_id: str = ""
    reason: str = ""


class Asking(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A round that was ended by questions, as it is stored. `request` is that of the round, as it was sent.

    `tool` is the name of the tool at its server. Times are Unix milliseconds on the clock of Redis.
    """

    server: str
    tool: str
    asked: InputRequired
    request: str
    asked_at: int
    expires_at: int


@dataclass(slots=True)
class MayAsk:
    """Whether questions of servers reach people now: see `storage/releases.py`."""

    allowed: bool = False


Answers = Mapping[int, Answer]
"""By the place of the question, from 1 on."""


@dataclass(frozen=True, slots=True)
class AskedRound:
    """A round with its questions, and those that have ended."""

    call: ToolCall
    number: int
    asking: Asking
    answers: Answers = field(default_factory=dict[int, Answer])

    @property
    def id(self) -> str:
        """Its id in the ledger."""
        return round_id(self.call.correlation_id, self.number)

    @property
    def open_questions(self) -> tuple[str, ...]:
        """The ids of its questions that have not ended."""
        places = range(1, 1 + len(self.asking.asked.questions))
        return tuple(self.question_id(place) for place in places if place not in self.answers)

    @property
    def is_open(self) -> bool:
        """Whether a question of it has not ended."""
        return bool(self.open_questions)

    def ended(self, answer: Answer) -> Answers:
        """Its answers, when the open questions end with this one."""
        places = range(1, 1 + len(self.asking.asked.questions))
        return {place: self.answers.get(place, answer) for place in places}

    def question_id(self, place: int) -> str:
        """The id of a question in the API."""
        return f"{self.call.correlation_id}:{self.number}:{place}"

    def details(self, place: int) -> dict[str, Any]:
        """A question as the person who is asked sees it, with the answer, JSON-ready. Texts are the server's."""
        question = self.asking.asked.questions[place - 1]
        about = {"questionId": self.question_id(place), "kind": question.kind, "message": question.message}
        shown: dict[str, Any] = about | _asked_for(question) | {"expiresAt": rfc3339(self.asking.expires_at)}
        if answer := self.answers.get(place):
            shown |= {"answeredAt": rfc3339(answer.at)} | ({"reason": answer.reason} if answer.reason else {})
            shown |= {} if answer.content is None else {"content": answer.content}
        return shown

    def status(self, place: int) -> QuestionStatus:
        """The state of a question."""
        answer = self.answers.get(place)
        return answer.status if answer else QuestionStatus.ASKED

    def shown(self) -> list[dict[str, Any]]:
        """Its questions with their states and answers, JSON-ready."""
        places = range(1, 1 + len(self.asking.asked.questions))
        return [{"status": self.status(place), **self.details(place)} for place in places]

    def steps(self, round_number: int, after: Answers | None = None) -> list[QuestionStep]:
        """The events of its questions; with `after`, of those that ended since there were these answers."""
        places = range(1, 1 + len(self.asking.asked.questions))
        news = places if after is None else [place for place in places if place in self.answers and place not in after]
        return [
            QuestionStep(self.status(place), self.call, self.asking.server, round_number, self.details(place))
            for place in news
        ]


def _asked_for(question: ServerQuestion) -> dict[str, Any]:
    if question.url is not None:
        return {"url": question.url, "host": urlsplit(question.url).hostname or ""}
    return {"schema": question.form or {}}


@dataclass(frozen=True, slots=True)
class FoundRound:
    """A round as any engine finds it, with its place and the roles of the turn's sender."""

    session_id: str
    turn_id: str
    asked: AskedRound
    is_running: bool = True
    """Whether the turn runs and the call has no outcome."""
    credential: str = ""


@dataclass(frozen=True, slots=True)
class RoundState:
    """What is committed of a round. When no question of it is open, either `request` is that of the next round, or the
    call has its outcome, which another engine may have committed."""

    asked: AskedRound
    request: ToolCallRequested | None = None
    outcome: ToolOutcome | None = None


@dataclass(frozen=True, slots=True)
class ParkedQuestion:
    """A call of a parked turn with an open question, the name of its tool, and who began the turn."""

    correlation_id: str
    turn_id: str
    tool_name: str
    subject: str
    roles: tuple[str, ...]


MakeNext = Callable[[Turn], ToolCallRequested]
"""Makes the request of the next round. Pure. The store passes the turn as it is at the commit."""


class QuestionStore(Protocol):
    """Stores the questions of servers. `ask` and `close` are for the owner of the turn, and raise TurnFencedError when
    another engine runs it; any engine may call the others."""

    async def ask(self, turn: Turn, call: ToolCall, request: ToolCallRequested, make: Callable[[str], Asking]) -> None:
        """Commit what ended a round, and delete its request from the outbox. `make` gets that request as stored."""
        ...

    async def state(self, asked: AskedRound) -> RoundState | None:
        """What is committed of it; None when it was deleted."""
        ...

    async def find(self, subject: str, turn_id: str, correlation_id: str, number: int) -> FoundRound | None:
        """A round of a turn of that subject."""
        ...

    async def waiting(self, correlation_id: str, number: int) -> tuple[bool, FoundRound | None]:
        """Whether a running turn waits for the call, of any subject, and that round, if it is committed."""
        ...

    async def pending(self, subject: str, limit: int) -> Sequence[FoundRound]:
        """The rounds in running turns of the subject with an open question, the oldest first."""
        ...

    async def answer(
        self,
        turn_id: str,
        asked: AskedRound,
        answers: Answers,
        request: MakeNext | None,
        outcome: ToolOutcome | None,
        answer_key: AnswerKey | None = None,
    ) -> Committed | None:
        """Commit all `answers` of a round that still has those of `asked`, with the request of the next round or the
        outcome of the call, if no question is open then, in one transaction. None when something has changed.
        Raises IdempotencyKeyReusedError."""
        ...

    async def parked(self, after: str, limit: int) -> Sequence[ParkedQuestion]:
        """The calls of parked turns with open questions, in the order of their ids, behind the one with this id."""
        ...

    async def close(
        self, turn: Turn, answer: Answer, outcome_of: Callable[[ToolCall], ToolOutcome]
    ) -> Sequence[tuple[AskedRound, ToolOutcome]]:
        """End every open question of the turn with this answer, and give its call its outcome."""
        ...
