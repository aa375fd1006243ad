"""Whether and when a provider that did not answer is asked again. Pure."""

import math
import random
import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime

MAX_ADVICE_SECONDS = 20.0
"""A user waits so long at most for the next try; who is advised to wait longer is told so."""
FIRST_PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 8.0
JITTER = 0.25
"""So much of a pause is left to chance: not all who were refused together come back together."""

_NO_HEADERS: Mapping[str, str] = {}


def may_be_asked_again(status: int, headers: Mapping[str, str]) -> bool:
    """Whether an answer with this status may be another one next time, as the official SDKs see it."""
    if (advised_seconds(headers) or 0) > MAX_ADVICE_SECONDS:
        return False
    match headers.get("x-should-retry"):
        case "true":
            return True
        case "false":
            return False
        case _:
            return status in (408, 409, 429) or status >= 500


def pause_seconds(retries: int, headers: Mapping[str, str] = _NO_HEADERS) -> float:
    """How long to wait before the next try: as advised, or longer each time. `retries`: how many there were."""
    if 0 < (advised := advised_seconds(headers) or 0) <= MAX_ADVICE_SECONDS:
        return advised
    longest = min(MAX_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(retries, 10))
    return longest * (1 - JITTER * random.random())


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
