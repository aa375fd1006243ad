"""Images, sounds and files of results: in rows of their own, apart from the outcomes that name them (ADR 0061).

Releases before kept their data in the outcome. Such an outcome is split when it is read, or by `dialog-engine
split-media`: in one transaction, so that the data is always in exactly one of the two places.
"""

import contextlib
from collections.abc import Collection, Sequence

import msgspec

from dialog_engine.errors import StorageUnavailableError
from dialog_engine.storage.store import SealedDatabase, SealedTransaction
from plugins_contract.outcomes import ContentBlock, MediaBlock, ToolOutcome

Parts = Sequence[tuple[int, bytes]]
"""The positions of media in an outcome, each with its data in base64."""


def split(outcome: ToolOutcome) -> tuple[ToolOutcome, Parts]:
    """The outcome without the data of its media, and that data."""
    content: list[ContentBlock] = []
    parts: list[tuple[int, bytes]] = []
    for number, block in enumerate(outcome.content):
        if isinstance(block, MediaBlock) and block.data:
            parts.append((number, block.data.encode()))
            content.append(msgspec.structs.replace(block, data="", stored_size=block.size))
        else:
            content.append(block)
    return (msgspec.structs.replace(outcome, content=tuple(content)), parts) if parts else (outcome, parts)


def keep_media(tx: SealedTransaction, correlation_id: str, parts: Parts) -> None:
    """Store the media of the call's outcome."""
    tx.execute_many(
        "INSERT INTO media (correlation_id, number, data) VALUES ($correlation_id, $number, $data)",
        [{"correlation_id": correlation_id, "number": number, "data": data} for number, data in parts],
    )


def split_stored(tx: SealedTransaction, correlation_id: str) -> bool:
    """Split the outcome of a call, unless it is split, deleted, or being split by another engine. Returns whether it
    was. Raises DecryptionError."""
    found = tx.execute(
        "SELECT correlation_id, outcome FROM tool_calls"
        f" WHERE correlation_id = $1 AND outcome IS NOT NULL {tx.skip_locked}",
        correlation_id,
    )
    if not found:
        return False
    outcome, parts = split(msgspec.json.decode(found[0].outcome, type=ToolOutcome))
    if not parts:
        return False
    tx.change(
        "UPDATE tool_calls SET outcome = $outcome WHERE correlation_id = $correlation_id",
        outcome=msgspec.json.encode(outcome),
        correlation_id=correlation_id,
    )
    keep_media(tx, correlation_id, parts)
    return True


class StoredMedia:
    """The media of all results. Who may read them is checked by its users."""

    def __init__(self, store: SealedDatabase) -> None:
        self._store = store

    async def fetch(self, correlation_id: str, number: int) -> str | None:
        """The base64 of one; None when there is none."""
        rows = await self._store.read(
            "SELECT correlation_id, number, data FROM media WHERE correlation_id = $1 AND number = $2",
            correlation_id,
            number,
        )
        return rows[0].data.decode() if rows else None

    async def split(self, correlation_ids: Collection[str]) -> None:
        """Split these outcomes. A store that cannot be written is left as it is."""

        def unit(tx: SealedTransaction) -> None:
            for each in correlation_ids:
                split_stored(tx, each)

        with contextlib.suppress(StorageUnavailableError):
            await self._store.write(unit)
