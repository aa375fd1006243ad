"""Statements of the store: their parameters and the columns of their results are known by name, sealed ones too.

A parameter `$content` has the name of its column. A statement that writes a sealed column from anything else than the
parameter of that name is refused, so that no text is stored in clear by mistake. In a result a sealed column is
decrypted when it is read.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dialog_engine.storage.database import MAX_STATEMENTS, Row, row_type
from dialog_engine.storage.schemas.sealed_columns import BY_COLUMN, TABLES
from dialog_engine.storage.sealed import open_value, seal_value
from plugins_contract.encryption import Cipher

_NUMBER = re.compile(r"\$([0-9]+)")
_NAME = re.compile(r"\$([a-z_]+)")
_WRITTEN = re.compile(r"(?:INSERT INTO|UPDATE) (\w+)")
_INSERTED = re.compile(r"INSERT INTO \w+ \(([^)]*)\)")
_ASSIGNED = re.compile(r"\bSET (.*?)(?: WHERE | RETURNING |$)", re.DOTALL)
_SEALED = {table.name: table.columns for table in TABLES if not table.only}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as a driver runs it: `names` are its parameters, after those that it numbers itself."""

    sql: str
    names: Sequence[str]
    sealed: Sequence[str]

    def parameters(self, values: Mapping[str, Any], cipher: Cipher) -> list[Any]:
        """The named parameters in their order, those of sealed columns encrypted."""
        if self.sealed:
            values = {**values, **{column: _sealed(cipher, column, values) for column in self.sealed}}
        return [values[name] for name in self.names]


@lru_cache(MAX_STATEMENTS)
def statement(sql: str) -> Statement:
    """Read a statement.

    Raises:
        ValueError: it would write a sealed column in clear.
    """
    names = tuple(dict.fromkeys(_NAME.findall(sql)))
    for column in _written(sql):
        if column not in names:
            raise ValueError(f"{column} is sealed: it is written by the parameter ${column} only, and not in: {sql}")
    first = max(map(int, _NUMBER.findall(sql)), default=0) + 1
    numbers = {name: f"${number}" for number, name in enumerate(names, first)}
    numbered = _NAME.sub(lambda found: numbers[found[1]], sql)
    return Statement(numbered, names, tuple(name for name in names if name in BY_COLUMN))


def _written(sql: str) -> list[str]:
    """The sealed columns that a statement writes."""
    found: list[str] = []
    for table in _WRITTEN.findall(sql):
        inserted, assigned = _INSERTED.search(sql), " ".join(_ASSIGNED.findall(sql))
        for column in _SEALED.get(table, ()):
            inserts = "INSERT" in sql and (inserted is None or re.search(rf"\b{column}\b", inserted[1]))
            if inserts or re.search(rf"\b{column} = (?!excluded\.)", assigned):
                found.append(column)
    return found


def _sealed(cipher: Cipher, column: str, values: Mapping[str, Any]) -> Any:
    table, value = BY_COLUMN[column], values[column]
    return seal_value(cipher, value, f"{table.name}.{column}", *(values[each] for each in table.bound_to))


def opening_type(columns: tuple[str, ...], cipher: Cipher) -> type[Row]:
    """The type of rows with these columns, whose sealed ones are decrypted when they are read.

    Raises:
        ValueError: a sealed column is read without those that it is bound to.
    """
    plain = row_type(columns)
    sealed = {column: _opened(cipher, column, columns) for column in columns if column in BY_COLUMN}
    return type("Row", (plain,), {"__slots__": (), **sealed}) if sealed else plain


def _opened(cipher: Cipher, column: str, columns: Sequence[str]) -> property:
    table = BY_COLUMN[column]
    if missing := set(table.bound_to) - set(columns):
        raise ValueError(f"{column} is sealed: it is read together with {', '.join(sorted(missing))}")
    name, place = f"{table.name}.{column}", columns.index(column)
    bound_to = [columns.index(each) for each in table.bound_to]
    return property(lambda row: open_value(cipher, row[place], name, *(row[each] for each in bound_to)))
