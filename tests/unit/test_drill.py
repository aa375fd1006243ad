"""A line of the drill falls short where an operator or a user would."""

from typing import Any

import pytest

from tests.drill.drill import Fault, Line


@pytest.mark.parametrize(
    ("seen", "short"),
    [
        ({}, []),
        ({"after": {"Expected": 60.0, "Following": 70.0}}, []),
        ({"after": {}}, ["Expected did not fire in time"]),
        ({"after": {"Expected": 121.0}}, ["Expected did not fire in time"]),
        ({"after": {"Expected": 60.0, "Other": 1.0}}, ["Other fired wrongly"]),
        ({"healed": None}, ["it did not heal"]),
        ({"failed": 1}, ["1 commands failed"]),
        ({"lost": 2}, ["2 calls lost"]),
        ({"doubled": 1}, ["1 calls ran twice"]),
        ({"slowest": 3.1}, ["a chat stalled for 3.1 s"]),
    ],
)
def test_a_line_falls_short_where_an_operator_or_a_user_would(seen: dict[str, Any], short: list[str]) -> None:
    fault = Fault("a part", lambda _: None, frozenset({"Expected"}), may_follow=frozenset({"Following"}))
    well: dict[str, Any] = {"after": {"Expected": 60.0}, "healed": 5.0}
    assert Line(fault, **well | seen).short == short


def test_one_request_in_a_hundred_may_be_refused_and_two_seconds_without_connection_pass_in_what_is_planned() -> None:
    planned = Fault("an upgrade", lambda _: None, planned=True)
    assert Line(planned, healed=5.0, requests=100, unavailable=1, unconnected=2.0).short == []
    assert Line(planned, healed=5.0, requests=100, unavailable=2, unconnected=2.1).short == [
        "2 of 100 requests got 503",
        "a user had no connection for 2.1 s",
    ]
