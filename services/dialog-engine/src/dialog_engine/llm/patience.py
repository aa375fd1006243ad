"""How long a provider's advice to come back later is followed by waiting for it."""

import math
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

import httpx2

MAX_ADVICE_SECONDS = 20.0
"""A user waits so long at most for the next try; who is advised to wait longer is told so."""


async def not_for_ever(response: httpx2.Response) -> None:
    """A response hook for the SDKs' HTTP clients: left to themselves they wait as long as they are advised to."""
    if (advised_seconds(response.headers) or 0) > MAX_ADVICE_SECONDS:
        response.headers["x-should-retry"] = "false"


def advised_seconds(headers: Mapping[str, str]) -> float | None:
    """What `retry-after` says, as seconds from now; None where it says nothing that can be read."""
    if (milliseconds := _number(headers.get("retry-after-ms"))) is not None:
        return milliseconds / 1000
    text = headers.get("retry-after")
    if (seconds := _number(text)) is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(text or "").timestamp() - time.time())
    except ValueError:
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None
