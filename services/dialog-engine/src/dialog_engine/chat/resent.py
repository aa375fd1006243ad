"""Conversations that clients send again with each request. Pure, but for the port.

Compared are the questions, the messages of the user, from the end: clients leave out the oldest messages and those of
the system, and rewrite the answers and the results of tools.
"""

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from callstream_runtime.long_texts import reading
from dialog_engine.model import Brought

MOST_COMPARED = 50
"""How many questions of a conversation are compared at most, the last ones."""


@dataclass(frozen=True, slots=True)
class Resent:
    """What a client sends again: its questions before the new one, and what it says was answered to the last of them,
    None for nothing."""

    questions: Sequence[str]
    answer: str | None

    @classmethod
    def of(cls, brought: Brought) -> "Resent":
        """What comes before the question of a request."""
        said = brought.said
        last = max((place for place, each in enumerate(said) if each.role == "user"), default=-1)
        answers = [each.content for each in said[last + 1 :] if each.role == "assistant"]
        return cls(brought.questions()[-MOST_COMPARED:], "".join(answers) if answers else None)


@dataclass(frozen=True, slots=True)
class Found:
    """A turn whose question a client has sent again as the last one before the new one. `agrees`: the questions before
    it are the same, as far as the client has sent them; `whole`: it has sent all of them. `answer` is the text of the
    model in it."""

    session_id: str
    turn_id: str
    agrees: bool
    whole: bool
    answer: str


def place_of(resent: Resent, found: Sequence[Found], *, named: bool) -> Found | None:
    """The turn that the new question follows, of those found, the newest first.

    Of several with the same questions it is the one with the same answer. In a `named` session the answer need not be
    the same; without a name the conversation may be that of anybody with the same key, so that nothing may differ.
    """
    same = [each for each in found if each.agrees]
    answered = [each for each in same if resent.answer is not None and bare(each.answer) == bare(resent.answer)]
    if named:
        return next(iter([*answered, *same]), None)
    return next((each for each in answered if each.whole), None)


async def find_place(
    store: "ResentStore", subject: str, session_id: str | None, resent: Resent, *, named: bool
) -> Found | None:
    """The turn that the new question follows, as `place_of`, of those in the store. Long texts are compared off the
    event loop. Raises StorageUnavailableError."""
    found = await store.find(subject, session_id, resent.questions)
    size = len(resent.answer or "") + sum(len(each.answer) for each in found)
    return await reading(size, place_of, resent, found, named=named)


def normalised(question: str) -> str:
    """A question as it is compared."""
    return " ".join(unicodedata.normalize("NFC", question).split())


_STEPS, _STEPS_END = '<details type="reasoning"', "</details>"
"""What a chat page may have put around the steps of an answer."""


def bare(answer: str) -> str:
    """An answer as it is compared: without white space and without the steps that a page has put into it."""
    parts: list[str] = []
    place = 0
    while (start := answer.find(_STEPS, place)) >= 0 and (end := answer.find(_STEPS_END, start)) >= 0:
        parts.append(answer[place:start])
        place = end + len(_STEPS_END)
    return "".join(unicodedata.normalize("NFC", "".join([*parts, answer[place:]])).split())


class ResentStore(Protocol):
    """Finds the turns that clients send again. Raises StorageUnavailableError."""

    async def find(self, subject: str, session_id: str | None, questions: Sequence[str]) -> Sequence[Found]:
        """The turns of a session, or of all that are not listed, with the last of these questions, the newest first;
        each with whether the questions before it agree."""
        ...
