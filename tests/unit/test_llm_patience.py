"""How a provider's advice to come back later is read, and when it is followed."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx2
import pytest

from dialog_engine.llm.patience import MAX_ADVICE_SECONDS, advised_seconds, not_for_ever

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "7"}, 7),
        ({"retry-after": "0.5"}, 0.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after": "soon"}, None),
        ({"retry-after": "-3"}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0),
        ({}, None),
    ],
)
def test_the_advice_is_read_as_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert advised_seconds(httpx2.Headers(headers)) == seconds


def test_a_date_is_so_many_seconds_from_now() -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    assert 3_500 < (advised_seconds(httpx2.Headers({"retry-after": date})) or 0) <= 3_600


@pytest.mark.parametrize(("advised", "waits"), [("1", True), (str(MAX_ADVICE_SECONDS + 1), False), ("nan", True)])
async def test_long_advice_is_not_waited_for(advised: str, *, waits: bool) -> None:
    response = httpx2.Response(429, headers={"retry-after": advised})
    await not_for_ever(response)
    assert (response.headers.get("x-should-retry") != "false") is waits
