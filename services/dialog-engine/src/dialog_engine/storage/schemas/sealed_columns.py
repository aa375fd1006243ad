"""The columns of the tables beside this file that hold texts, arguments and results: they are stored encrypted.

This is the one place that names them. `store` encrypts what is written to them and decrypts what is read. Names of
sealed columns are unique among the tables, so that a parameter or a column of a result is known by its name.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SealedTable:
    """A table with sealed columns. `bound_to` are the columns to whose values they are bound."""

    name: str
    primary_key: Sequence[str]
    bound_to: Sequence[str]
    columns: Sequence[str]
    only: str = ""
    """SQL of a condition on the rows. Such columns are sealed by the one function that writes them."""


TABLES = (
    SealedTable("sessions", ("session_id",), ("session_id",), ("title", "metadata")),
    SealedTable("added_items", ("addition_id", "number"), ("addition_id", "number"), ("added_item",)),
    SealedTable("turns", ("turn_id",), ("turn_id",), ("error_message",)),
    SealedTable("waiting_messages", ("turn_id",), ("turn_id",), ("waiting_text",)),
    SealedTable("turn_inputs", ("turn_id",), ("turn_id",), ("brought",)),
    SealedTable("turn_images", ("turn_id", "number"), ("turn_id", "number"), ("image",)),
    SealedTable("messages", ("message_id",), ("turn_id", "role"), ("content", "reasoning")),
    SealedTable("tool_calls", ("correlation_id",), ("correlation_id",), ("arguments", "extra", "outcome")),
    SealedTable("media", ("correlation_id", "number"), ("correlation_id", "number"), ("data",)),
    SealedTable("large_results", ("correlation_id",), ("correlation_id",), ("large_result",)),
    SealedTable("whole_results", ("correlation_id",), ("correlation_id",), ("whole",)),
    SealedTable("approvals", ("correlation_id",), ("correlation_id",), ("question", "decision")),
    SealedTable(
        "questions", ("correlation_id", "round_number"), ("correlation_id", "round_number"), ("asking", "given")
    ),
    SealedTable("meta", ("key",), ("key",), ("value",), "key = 'audit_digest_key'"),
)
"""In the outbox, fields of requests and facts are sealed too, by `StoreTransaction.publish`; they go with their row."""

BY_COLUMN = {column: table for table in TABLES if not table.only for column in table.columns}
