"""How a provider's advice to come back later is read, and when it is asked again."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from multidict import CIMultiDict

from dialog_engine.llm.patience import (
    FIRST_PAUSE_SECONDS,
    JITTER,
    MAX_ADVICE_SECONDS,
    MAX_PAUSE_SECONDS,
    advised_seconds,
    may_be_asked_again,
    pause_seconds,
)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"Retry-After": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({}, None),
    ],
)
def test_the_advice_is_read_as_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert advised_seconds(CIMultiDict(headers)) == seconds


def test_a_date_is_so_many_seconds_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3_500 < (advised_seconds({"retry-after": date}) or 0) <= 3_600


@pytest.mark.parametrize(("advised", "waits"), [("1", True), (str(MAX_ADVICE_SECONDS + 1), False), ("nan", True)])
def test_long_advice_is_not_waited_for(advised: str, *, waits: bool) -> None:
    assert may_be_asked_again(429, {"retry-after": advised}) is waits
    assert may_be_asked_again(429, {"retry-after": advised, "x-should-retry": "true"}) is waits


def test_advice_is_followed_to_the_second() -> None:
    assert pause_seconds(3, {"retry-after": "7"}) == 7


@pytest.mark.parametrize("advice", [None, "0", "soon", str(MAX_ADVICE_SECONDS + 1)])
def test_without_advice_the_pauses_grow_to_a_bound_and_differ(advice: str | None) -> None:
    headers = {} if advice is None else {"retry-after": advice}
    longest = [0.5, 1, 2, 4, 8, 8]
    assert longest[0] == FIRST_PAUSE_SECONDS
    for retries, most in enumerate(longest):
        pauses = {pause_seconds(retries, headers) for _ in range(50)}
        assert most * (1 - JITTER) <= min(pauses) < max(pauses) <= most
    assert pause_seconds(1_000_000, headers) <= MAX_PAUSE_SECONDS
