"""What was used by day, subject, model and tool, what it costs, and how it is shown. For operators only."""

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

from callstream_runtime.watched_file import WatchedFile

DAY_MS = 86_400_000
DEFAULT_DAYS = 30
MILLION = 1_000_000
_EPOCH = date(1970, 1, 1)
_Day = Annotated[int, msgspec.Meta(ge=-1_000_000, le=3_000_000)]
_Text = Annotated[str, msgspec.Meta(pattern=r"^[^\x00]*$")]
Key = tuple[_Day, _Text, _Text, _Text, _Text]
"""The day, as the number of days since 1970-01-01, the subject, the model, the server and the tool of a row."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which rows: from the day `first` to the day `last`, in days since 1970-01-01. Empty texts do not restrict. `tool`
    is a tool's name or that of its server."""

    first: int
    last: int
    subject: str = ""
    model: str = ""
    tool: str = ""

    @classmethod
    def between(cls, first: date | None, last: date | None, today: date, **names: str) -> "Wanted":
        """From a day to a day, by default the last DEFAULT_DAYS of them.

        Raises:
            ValueError: the first one is later.
        """
        last = last or today
        first = first or last - timedelta(days=min(DEFAULT_DAYS, last.toordinal()) - 1)
        if first > last:
            raise ValueError(f"from is {first}, which is later than to, {last}: exchange them")
        return cls((first - _EPOCH).days, (last - _EPOCH).days, **names)

    @classmethod
    def ever(cls, subject: str) -> "Wanted":
        """All days of one subject.

        Raises:
            ValueError: it has no name, which would be all subjects.
        """
        if not subject:
            raise ValueError("the subject has no name")
        return cls(0, (date.max - _EPOCH).days, subject=subject)


@dataclass(frozen=True, slots=True)
class Used:
    """What one subject has used on one day of one model, or of one tool. `estimated` are the turns of which a part of
    the tokens is an estimate; turns are counted with the model that answered last. An erased subject is ''."""

    day: int
    subject: str
    model: str
    server: str
    tool: str
    turns: int
    estimated: int
    input_tokens: int
    output_tokens: int
    calls: int

    @property
    def key(self) -> Key:
        """Its place in the order of rows."""
        return self.day, self.subject, self.model, self.server, self.tool


class UsageReport(Protocol):
    """The use of all engines."""

    async def page(self, wanted: Wanted, after: Key | None, limit: int) -> Sequence[Used]:
        """The next rows in the order of their keys. Raises StorageUnavailableError."""
        ...


# --- Prices ----------------------------------------------------------------------------------------------------------


class ModelPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The prices of a million tokens."""

    input: Decimal
    output: Decimal


class ToolPrice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price of a call."""

    call: Decimal


class Prices(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What PRICES_FILE says. `currency` is a code such as EUR, or empty without prices."""

    currency: Annotated[str, msgspec.Meta(pattern="^[A-Z]{3}$")] = ""
    models: dict[str, ModelPrice] = {}
    tools: dict[str, ToolPrice] = {}

    def cost(self, used: Used) -> Decimal | None:
        """What it costs, to a millionth; None without a price."""
        if used.tool:
            price = self.tools.get(used.tool)
            return round(price.call * used.calls, 6) if price else None
        price = self.models.get(used.model)
        if price is None:
            return None
        return round((price.input * used.input_tokens + price.output * used.output_tokens) / MILLION, 6)


NO_PRICES = Prices()


def read_prices(data: bytes) -> Prices:
    """The prices in a TOML file. Raises ValueError; the text names the field."""
    try:
        prices = msgspec.toml.decode(data, type=Prices)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"is not a file of prices: {error}") from None
    if not prices.currency:
        raise ValueError('has no `currency`: set it to a code such as "EUR"')
    for table, entries in (("models", prices.models), ("tools", prices.tools)):
        for name, price in entries.items():
            for field, amount in msgspec.structs.asdict(price).items():
                if not (amount.is_finite() and 0 <= amount < MILLION):
                    raise ValueError(f"{table}.{name!r}.{field} is {amount}: it must be 0 or more, and below {MILLION}")
    return prices


def watched_prices(path: Path | None) -> WatchedFile[Prices] | None:
    """The prices, whose file may be replaced at any time; None without a file. Raises ValueError as read_file does."""
    return WatchedFile(path, read_prices, NO_PRICES) if path else None


# --- How it is shown -------------------------------------------------------------------------------------------------

COLUMNS = (
    "day",
    "subject",
    "model",
    "server",
    "tool",
    "turns",
    "estimatedTurns",
    "inputTokens",
    "outputTokens",
    "calls",
    "cost",
    "currency",
)
_FORMULA = re.compile(r"\s*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")
"""How a text begins that a spreadsheet would take for a formula."""


def iso(day: int) -> str:
    """The day as YYYY-MM-DD."""
    return (_EPOCH + timedelta(days=day)).isoformat()


def as_json(used: Used, prices: Prices) -> dict[str, Any]:
    """A row as JSON; null for what it has not, such as the subject of one that was erased."""
    cost = prices.cost(used)
    texts = [each or None for each in (used.subject, used.model, used.server, used.tool)]
    counts = [used.turns, used.estimated, used.input_tokens, used.output_tokens, used.calls]
    priced = [None, None] if cost is None else [float(cost), prices.currency]
    return dict(zip(COLUMNS, [iso(used.day), *texts, *counts, *priced], strict=True))


def as_csv(rows: Iterable[Used], prices: Prices, *, head: bool = True) -> str:
    """The rows as CSV (RFC 4180). A text that a spreadsheet would take for a formula has an apostrophe before it."""
    text = io.StringIO()
    writer = csv.writer(text)
    if head:
        writer.writerow(COLUMNS)
    for row in rows:
        values = as_json(row, prices) | {"cost": prices.cost(row)}
        writer.writerow(
            [f"'{each}" if isinstance(each, str) and _FORMULA.match(each) else each for each in values.values()]
        )
    return text.getvalue()
