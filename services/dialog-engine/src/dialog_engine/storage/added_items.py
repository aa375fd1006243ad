"""Messages that clients have added to a session without asking anything: they wait in rows of their own, and the next
turn that follows the path that is shown gets them before its question, in the transaction that accepts its message."""

from dataclasses import replace

import msgspec

from dialog_engine.model import Brought, ClientMessage, Turn
from dialog_engine.storage.branches import LEAF
from dialog_engine.storage.brought import brought_of, image_data
from dialog_engine.storage.database import Row
from dialog_engine.storage.store import SealedTransaction
from plugins_contract.outcomes import MediaBlock

IN_USE = "(turn_id IS NULL OR standing = 1)"
_IN_USE = (
    "SELECT addition_id, number, turn_id, added_item FROM added_items"
    f" WHERE session_id = $1 AND {IN_USE} ORDER BY place"
)
_LEAF = f"SELECT coalesce({LEAF}, '') AS leaf FROM sessions s WHERE s.session_id = $1"
_MOVE = (
    "UPDATE added_items SET turn_id = $turn_id, added_item = $added_item"
    " WHERE addition_id = $addition_id AND number = $number"
)
_OF_TURN = "SELECT addition_id, number FROM added_items WHERE session_id = $1 AND turn_id = $2 ORDER BY place"
_BROUGHT = "SELECT turn_id, brought FROM turn_inputs WHERE turn_id = $1"


def with_added(tx: SealedTransaction, turn: Turn) -> Turn:
    """The turn with what was added to its session, which is locked. Instructions are there in every later turn too."""
    rows = tx.execute(_IN_USE, turn.session_id)
    if turn.parent is not None and tx.execute(_LEAF, turn.session_id)[0].leaf != turn.parent:
        rows = [row for row in rows if row.turn_id]  # it follows another turn than those to which the rest was added
    if not rows:
        return turn
    messages = [message_of(row) for row in rows]
    waiting = [(row, message) for row, message in zip(rows, messages, strict=True) if not row.turn_id]
    for row, message in waiting:
        _move(tx, row, turn.turn_id, message if message.is_instruction else None)
    brought = turn.brought or Brought(own_api=True)
    instructions = [each.content for each in messages if each.is_instruction]
    said = (*(message for _, message in waiting), *brought.said)
    return replace(turn, brought=msgspec.structs.replace(brought, standing="\n\n".join(instructions), said=said))


def give_back(tx: SealedTransaction, session_id: str, turn_id: str) -> None:
    """Let what a message has got wait again, because it is withdrawn. The session is locked."""
    rows = tx.execute(_OF_TURN, session_id, turn_id)
    if not rows:
        return
    added = [each for each in brought_of(tx.execute(_BROUGHT, turn_id)[0]).said if each.id]
    for row, message in zip(rows, added, strict=False):  # behind them may be those of the turn that is asked once more
        media = [MediaBlock(each.mime_type, image_data(tx, each).decode()) for each in message.media]
        _move(tx, row, None, msgspec.structs.replace(message, media=tuple(media)))


def message_of(row: Row) -> ClientMessage:
    """The message of a row that has it."""
    return msgspec.json.decode(row.added_item, type=ClientMessage)


def _move(tx: SealedTransaction, row: Row, turn_id: str | None, message: ClientMessage | None) -> None:
    data = msgspec.json.encode(message) if message else None
    tx.change(_MOVE, turn_id=turn_id, added_item=data, addition_id=row.addition_id, number=row.number)
