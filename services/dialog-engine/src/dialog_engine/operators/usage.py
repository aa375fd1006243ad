"""`dialog-engine usage`: what was used by day, subject, model and tool, and what it costs, also while engines run."""

import json
from collections.abc import Generator, Iterable, Sequence
from decimal import Decimal

from callstream_runtime.visible import visible
from callstream_runtime.watched_file import read_file
from dialog_engine.config.store import StoreSettings
from dialog_engine.consumption.usage import NO_PRICES, Key, Prices, Used, Wanted, iso, read_prices
from dialog_engine.consumption.usage import as_csv as csv_of
from dialog_engine.consumption.usage import as_json as json_of
from dialog_engine.errors import ConfigurationError
from dialog_engine.operators.audit import Query
from dialog_engine.storage.usage import PAGE, parameters, used

ROWS = 1_000
ERASED, NO_MODEL = "(erased)", "(no model)"
Pages = Iterable[Sequence[Used]]


def prices_of(settings: StoreSettings) -> Prices:
    """The prices of PRICES_FILE; none without a file. Raises ConfigurationError when it cannot be used."""
    try:
        return read_file(settings.prices_file, read_prices) if settings.prices_file else NO_PRICES
    except ValueError as error:
        raise ConfigurationError(f"PRICES_FILE: {error}") from None


def pages(query: Query, wanted: Wanted) -> Generator[Sequence[Used]]:
    """All rows, in pages."""
    after: Key | None = None
    while rows := used(query(PAGE, *parameters(wanted, after, ROWS))):
        yield rows
        after = rows[-1].key


def as_csv(pages: Pages, prices: Prices) -> Generator[str]:
    """The rows as CSV."""
    yield csv_of((), prices)
    yield from (csv_of(rows, prices, head=False) for rows in pages)


def as_json(pages: Pages, prices: Prices) -> Generator[str]:
    """Each row as a line of JSON."""
    return (json.dumps(json_of(row, prices)) + "\n" for rows in pages for row in rows)


def as_text(pages: Pages, prices: Prices) -> Generator[str]:
    """A table for people, with the sum of the costs."""
    line = "{:<10}  {:<24}  {:<40}  {:>7}  {:>12}  {:>12}  {:>7}  {:>14}\n"
    yield line.format(
        "day (UTC)", "subject", "model or tool", "turns", "tokens in", "tokens out", "calls", f"cost {prices.currency}"
    )
    total, unpriced = Decimal(), 0
    for row in (row for rows in pages for row in rows):
        cost = prices.cost(row)
        total, unpriced = total + (cost or 0), unpriced + (cost is None)
        counts = ["", "", "", row.calls] if row.tool else [row.turns, row.input_tokens, row.output_tokens, ""]
        names = [_fitted(row.subject or ERASED, 24), _fitted(row.tool or row.model or NO_MODEL, 40)]
        yield line.format(iso(row.day), *names, *counts, "" if cost is None else str(cost))
    if prices is not NO_PRICES:
        yield f"Together {total} {prices.currency}; {unpriced} rows have no price.\n"


def _fitted(name: str, width: int) -> str:
    name = visible(name)
    return name if len(name) <= width else name[: width - 1] + "…"
