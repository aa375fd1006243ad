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

from dialog_engine.storage.database import MAX_STATEMENTS, Row
from dialog_engine.storage.schemas.sealed_columns import BY_COLUMN, TABLES
from plugins_contract.encryption import MARK, SEALED, Cipher

_NUMBER = re.compile(r"\$([0-9]+)")
_NAME = re.compile(r"\$([a-z_]+)")
_WRITTEN = re.compile(r"(?:INSERT INTO|UPDATE) (\w+)")
_INSERTED = re.compile(r"INSERT INTO \w+ \(([^)]*)\)")
_ASSIGNED = re.compile(r"\bSET (.*?)(?: WHERE | RETURNING |$)", re.DOTALL)
_SEALED = {table.name: table.columns for table in TABLES if not table.only}


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement as a driver runs it: `names` are its parameters, after those that it numbers itself. `sealed` are
    those of sealed columns: their places, the columns, and the parameters that they are bound to."""

    sql: str
    names: Sequence[str]
    sealed: Sequence[tuple[int, str, Sequence[str]]]

    def parameters(self, values: Mapping[str, Any], cipher: Cipher) -> list[Any]:
        """The named parameters in their order, those of sealed columns encrypted."""
        found = [values[name] for name in self.names]
        for place, column, bound_to in self.sealed:
            found[place] = seal_value(cipher, found[place], column, *[values[name] for name in bound_to])
        return found


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
    sealed = [(place, *_bound(name)) for place, name in enumerate(names) if name in BY_COLUMN]
    return Statement(numbered, names, sealed)


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


def _bound(column: str) -> tuple[str, Sequence[str]]:
    """The full name of a sealed column, and the columns that its values are bound to."""
    table = BY_COLUMN[column]
    return f"{table.name}.{column}", table.bound_to


def opening_type(plain: type[Row], cipher: Cipher) -> type[Row]:
    """The type of rows like `plain` ones, but whose sealed columns are decrypted when they are read.

    Raises:
        ValueError: a sealed column is read without those that it is bound to.
    """
    columns = plain.columns
    sealed = {column: _opened(cipher, column, columns) for column in columns if column in BY_COLUMN}
    return type("Row", (plain,), {"__slots__": (), **sealed}) if sealed else plain


def _opened(cipher: Cipher, column: str, columns: Sequence[str]) -> property:
    name, bound_to = _bound(column)
    if missing := set(bound_to) - set(columns):
        raise ValueError(f"{column} is sealed: it is read together with {', '.join(sorted(missing))}")
    place, *bound = map(columns.index, (column, *bound_to))
    return property(lambda row: open_value(cipher, row[place], name, *[row[each] for each in bound]))


def owner(column: str, *bound_to: object) -> str:
    """What a value is bound to. `column` is `table.column`."""
    return " ".join((column, *map(str, bound_to)))


def seal_value(cipher: Cipher, value: Any, column: str, *bound_to: object) -> Any:
    """A text or data as the column holds it. None stays None."""
    if value is None or not (cipher.active or (isinstance(value, str) and value.startswith(MARK))):
        return value
    belongs_to = owner(column, *bound_to)
    return cipher.seal_text(value, belongs_to) if isinstance(value, str) else cipher.seal(value, belongs_to)


def open_value(cipher: Cipher, value: Any, column: str, *bound_to: object) -> Any:
    """The text or data of a column. Raises DecryptionError."""
    if value is None or not (cipher.strict or value.startswith(MARK if isinstance(value, str) else SEALED)):
        return value
    belongs_to = owner(column, *bound_to)
    return cipher.open_text(value, belongs_to) if isinstance(value, str) else cipher.open(value, belongs_to)
