"""Pages of the items of a conversation. The turns of the path that is shown are read one by one, from the place where
the page begins; behind them are the messages that wait, and what was added and waits for a question."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any, Literal

import msgspec

from dialog_engine.chat.conversations import AddedItem, Conversation
from dialog_engine.errors import TurnNotFoundError
from dialog_engine.facades.conversations.items import items_of_turn
from dialog_engine.facades.responses.ids import named
from dialog_engine.facades.responses.input_items import message_item, said_items
from dialog_engine.facades.responses.kept import refused
from dialog_engine.http.plain import RUNNING
from dialog_engine.http.services import Services

PAGE_BYTES = 1_000_000
"""A page ends before the item that goes beyond this, unless it is the first one."""

Json = dict[str, Any]
Order = Literal["asc", "desc"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where an item is: in a turn, or, without one, behind all turns. `added` is what a client has added."""

    turn_id: str
    added: AddedItem | None = None


@dataclass(frozen=True, slots=True)
class ConversationItems:
    """The items of one conversation of a subject."""

    engine: Services
    subject: str
    conversation: Conversation

    async def find(self, name: str) -> tuple[Place, Json] | None:
        """The item with this id, and where it is; None for no item."""
        place = await self._place(name)
        for item in await self._section(place.turn_id) if place else ():
            if place and item["id"] == name:
                return place, item
        return None

    async def added(self, addition_id: str) -> Sequence[Json]:
        """The items of an addition that wait for a question."""
        found = await self.engine.conversations.added(self.conversation.session_id, addition_id)
        return _added_items(found)

    async def page(self, after: str, limit: int, order: Order) -> Json:
        """The items behind the one with the id `after`, '' for none, as far as the page goes. A message that has begun
        meanwhile was perhaps neither seen on the path nor among those that wait: then the page is read again.

        Raises:
            ProblemError: no item has this id.
        """
        page = await self._page(after, limit, order)
        now = await self.engine.conversations.find(self.subject, self.conversation.session_id)
        if now.leaf_turn_id != self.conversation.leaf_turn_id:
            return await replace(self, conversation=now).page(after, limit, order)
        return page

    async def _page(self, after: str, limit: int, order: Order) -> Json:
        found: list[Json] = []
        size, more, seen = 0, False, not after
        async with aclosing(self._sections(after, limit, order)) as sections:
            async for section in sections:
                for item in section:
                    if not seen:
                        seen = item["id"] == after
                        continue
                    size += len(msgspec.json.encode(item))
                    if found and (len(found) == limit or size > PAGE_BYTES):
                        more = True
                        break
                    found.append(item)
                if more:
                    break
        if not seen:
            raise refused("after", "is not the id of an item on the path of the conversation that is shown")
        return list_of(found, has_more=more)

    async def _sections(self, after: str, limit: int, order: Order) -> AsyncGenerator[Sequence[Json]]:
        """The items of one turn after the other, from the one with the item `after` on."""
        place = await self._place(after) if after else None
        turn_id = place.turn_id if place else ""
        if after and place is None:
            return
        store, leaf = self.engine.conversations, self.conversation.leaf_turn_id
        turns = limit + 2  # more than a page has, also behind the turn in which it begins: each has an item at least
        if order == "desc":
            if not turn_id:
                yield [*reversed(await self._section(""))]
            for each in await store.back(turn_id or leaf, turns):
                yield [*reversed(await self._section(each))]
            return
        if turn_id or not place:
            for each in await store.forth(leaf, turn_id, turns):
                yield await self._section(each)
        yield await self._section("")

    async def _section(self, turn_id: str) -> Sequence[Json]:
        if not turn_id:
            return await self._behind_all()
        try:
            record = await self.engine.archive.turn(self.subject, turn_id)
        except TurnNotFoundError:  # deleted meanwhile
            return ()
        # A turn that waits for its user is parked a moment later only.
        is_written = record.status == RUNNING and not (record.parked or await self.engine.parked.waits_for(turn_id))
        return items_of_turn(record, await self.engine.archive.turn_messages(turn_id), is_written=is_written)

    async def _behind_all(self) -> Sequence[Json]:
        session_id = self.conversation.session_id
        items: list[Json] = []
        for waiting in await self.engine.turns.queue.store.of_session(self.subject, session_id):
            turn_id = waiting.turn.turn_id
            items += said_items(turn_id, waiting.text, await self.engine.responses.brought(turn_id))
        return items + _added_items(await self.engine.conversations.waiting(session_id))

    async def _place(self, name: str) -> Place | None:
        """Where an item may be, by its id."""
        kind, _, _ = name.partition("_")
        found, session_id = named(name, kind), self.conversation.session_id
        if found is None:
            return None
        for item in await self.engine.conversations.added(session_id, found.owner):
            if found.rest == f"a{item.number}":
                return Place(await self._begun(item.turn_id), item)
        return Place(await self._begun(found.owner))

    async def _begun(self, turn_id: str) -> str:
        """The turn, if it has begun in this conversation; '' for a message that waits, and for none."""
        try:
            record = await self.engine.archive.turn(self.subject, turn_id)
        except TurnNotFoundError:
            return ""
        return turn_id if record.session_id == self.conversation.session_id else ""


def _added_items(items: Sequence[AddedItem]) -> list[Json]:
    """What was added and waits, as items."""
    return [message_item(each.message.id, each.message) for each in items if each.message]


def list_of(items: Sequence[Json], *, has_more: bool = False) -> Json:
    """A list of items."""
    ends = {"first_id": items[0]["id"] if items else "", "last_id": items[-1]["id"] if items else ""}
    return {"object": "list", "data": items, **ends, "has_more": has_more}
