"""What requests have brought beside the text of their questions (`Brought`), in rows of its turn, or of the message
that waits to become it. Images lie in rows of their own, apart from the messages that they belong to."""

from collections.abc import Iterator
from dataclasses import replace

import msgspec

from dialog_engine.model import NOTHING_BROUGHT, Brought, MediaOfUser, Turn
from dialog_engine.storage.database import Row
from dialog_engine.storage.store import SealedDatabase, SealedTransaction
from plugins_contract.outcomes import MediaBlock

_KEEP = "INSERT INTO turn_inputs (turn_id, session_id, brought) VALUES ($turn_id, $session_id, $brought)"
_KEEP_IMAGE = "INSERT INTO turn_images (turn_id, number, image) VALUES ($turn_id, $number, $image)"
_OF_TURN = "SELECT turn_id, brought FROM turn_inputs WHERE turn_id = $1"
_IMAGE = "SELECT turn_id, number, image FROM turn_images WHERE turn_id = $1 AND number = $2"


def keep_brought(tx: SealedTransaction, turn: Turn) -> Turn:
    """Store what the request of a turn has brought, whose session is there. Images of another turn, which is answered
    once more, are copied. Returns the turn as it runs."""
    if turn.brought is None:
        return turn
    media = turn.brought.all_media()
    without_data = (MediaBlock(block.mime_type, "", stored_size=block.size) for block in media)
    tx.change(
        _KEEP,
        turn_id=turn.turn_id,
        session_id=turn.session_id,
        brought=msgspec.json.encode(turn.brought.with_media(without_data)),
    )
    for number, block in enumerate(media):
        tx.change(_KEEP_IMAGE, turn_id=turn.turn_id, number=number, image=image_data(tx, block))
    return replace(turn, brought=turn.brought.committed())


def image_data(tx: SealedTransaction, image: MediaBlock) -> bytes:
    """The data of an image in base64; that of a stored one is read."""
    if not isinstance(image, MediaOfUser):
        return image.data.encode()
    found = tx.execute(_IMAGE, image.turn_id, image.number)
    return found[0].image if found else b""


def brought_for(tx: SealedTransaction, turn_id: str) -> Brought | None:
    """What a running turn needs of it."""
    found = tx.execute(_OF_TURN, turn_id)
    return committed_of(found[0]) if found else None


def committed_of(row: Row) -> Brought | None:
    """The same, from a row that has it or NULL."""
    return None if row.brought is None else decoded(row.brought).committed()


def brought_of(row: Row) -> Brought:
    """All of it, from such a row of a turn; the data of its images is to be read."""
    if row.brought is None:
        return NOTHING_BROUGHT
    brought = decoded(row.brought)
    return brought.with_media(_in_store(row.turn_id, brought))


def decoded(data: bytes) -> Brought:
    """What such a row has. Nothing, where it is nested too deeply to be read: earlier versions have stored that."""
    try:
        return msgspec.json.decode(data, type=Brought)
    except RecursionError:
        return NOTHING_BROUGHT


def _in_store(turn_id: str, brought: Brought) -> Iterator[MediaBlock]:
    for number, block in enumerate(brought.all_media()):
        yield MediaOfUser(block.mime_type, "", stored_size=block.stored_size, turn_id=turn_id, number=number)


def forget_brought(tx: SealedTransaction, turn: Turn) -> None:
    """Delete what came with a message that was withdrawn, but for what its protocol says of the request."""
    found = [brought_of(row).response for row in tx.execute(_OF_TURN, turn.turn_id)]
    forget_all_brought(tx, turn.turn_id)
    for response in found:
        if response is not None:
            keep_brought(tx, replace(turn, brought=Brought(response=response)))


def forget_all_brought(tx: SealedTransaction, turn_id: str) -> None:
    """Delete what came with a message."""
    tx.change("DELETE FROM turn_inputs WHERE turn_id = $1", turn_id)


async def image_of(store: SealedDatabase, turn_id: str, number: int) -> MediaBlock | None:
    """An image with its data."""
    of_turn = await store.read(_OF_TURN, turn_id)
    media = brought_of(of_turn[0]).all_media() if of_turn else []
    if not 0 <= number < len(media):
        return None
    rows = await store.read(_IMAGE, turn_id, number)
    return MediaBlock(media[number].mime_type, rows[0].image.decode()) if rows else None
