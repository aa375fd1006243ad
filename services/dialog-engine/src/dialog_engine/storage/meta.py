"""Who this engine is: the name of its mailbox lives as long as its file."""

from dialog_engine.storage.database import Database, Transaction
from plugins_contract.ids import new_id


async def engine_id(database: Database) -> str:
    """The id of the engine that owns this file; made at its first start."""

    def unit(tx: Transaction) -> str:
        tx.execute("INSERT OR IGNORE INTO meta (key, value) VALUES ('engine_id', ?)", new_id())
        [(value,)] = tx.execute("SELECT value FROM meta WHERE key = 'engine_id'")
        return value

    return await database.write(unit)
