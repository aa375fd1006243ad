"""Pages of the items of a conversation that changes while they are read: `facades/conversations/pages.py`."""

from types import SimpleNamespace
from typing import Any

import pytest

from dialog_engine.chat.archive import MessageRecord, TurnRecord
from dialog_engine.chat.conversations import Conversation
from dialog_engine.chat.waiting_messages import WaitingMessage
from dialog_engine.facades.conversations.pages import ConversationItems, Order
from dialog_engine.model import NOTHING_BROUGHT, Turn, Usage
from plugins_contract.messages import new_id


class Beginning:
    """A session whose first message waits, and begins when it was looked for on the path, or among those that wait."""

    def __init__(self, when: str) -> None:
        self.turn_id, self._when, self._begun = new_id(), when, False

    async def find(self, subject: str, session_id: str) -> Conversation:
        return Conversation(session_id, self.turn_id if self._begun else "")

    async def path(self, *_: object) -> list[str]:
        return self._seen("path", [self.turn_id] if self._begun else [])

    async def of_session(self, subject: str, session_id: str) -> list[WaitingMessage]:
        waits = WaitingMessage(Turn(self.turn_id, session_id, subject), 1, 0, text="Hi")
        return self._seen("waiting", [] if self._begun else [waits])

    async def turn(self, subject: str, turn_id: str) -> TurnRecord:
        return TurnRecord(turn_id, "session", "running", None, Usage(), None, None, 0, None)

    async def turn_messages(self, turn_id: str) -> list[MessageRecord]:
        return [MessageRecord(1, turn_id, "user", "Hi", False, 0, ())]

    async def nothing(self, *_: object) -> Any:
        return ()

    async def brought(self, turn_id: str) -> Any:
        return NOTHING_BROUGHT

    def _seen(self, what: str, found: list[Any]) -> list[Any]:
        self._begun = self._begun or what == self._when
        return found

    @property
    def engine(self) -> Any:
        conversations = SimpleNamespace(find=self.find, forth=self.path, back=self.path, waiting=self.nothing)
        return SimpleNamespace(
            conversations=conversations,
            archive=self,
            parked=SimpleNamespace(waits_for=self.nothing),
            turns=SimpleNamespace(queue=SimpleNamespace(store=self)),
            responses=self,
        )


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("when", ["path", "waiting"])
async def test_a_message_that_begins_while_a_page_is_read_is_on_it_once(when: str, order: Order) -> None:
    session = Beginning(when)
    items = ConversationItems(session.engine, "ada", await session.find("ada", "session"))
    assert [each["role"] for each in (await items.page("", 20, order))["data"]] == ["user"]
