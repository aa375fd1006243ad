"""Which pools of workers fit a call."""

import pytest

from plugins_contract.messages import NEWEST_VERSION
from plugins_contract.pools import Member, fitting, pools_of

NEWER = NEWEST_VERSION + 1


def worker(servers: str, *pools: str, reads: int = NEWEST_VERSION) -> Member:
    return Member(at=1, servers=tuple(servers), pools=pools, reads=reads)


@pytest.mark.parametrize(
    ("members", "pools"),
    [
        pytest.param([], [], id="nobody runs"),
        pytest.param([worker("yz", "p")], [], id="nobody has it"),
        pytest.param([worker("x", "p"), worker("xy", "q")], [""], id="everybody has it"),
        pytest.param([worker("x", "p"), worker("y", "q")], ["p"], id="one pool has it"),
        pytest.param([worker("x", "p"), worker("xz", "q"), worker("y", "r")], ["p", "q"], id="two pools have it"),
        pytest.param([worker("x", "n", "p"), worker("y", "q")], ["n"], id="the named pool goes first"),
        pytest.param([worker("x", "n", "p"), worker("y", "n", "q")], ["p"], id="a named pool in a rolling deployment"),
        pytest.param([worker("x", "n"), worker("y", "n")], [], id="no pool has it alone"),
        pytest.param([worker("x", "p", reads=NEWER), worker("x", "q")], [""], id="another release reads it too"),
    ],
)
def test_a_pool_fits_if_each_of_its_workers_can_run_the_call(members: list[Member], pools: list[str]) -> None:
    assert fitting(members, "x", NEWEST_VERSION) == pools


def test_a_newer_request_fits_the_workers_that_read_it() -> None:
    assert fitting([worker("x", "p"), worker("x", "q", reads=NEWER)], "x", NEWER) == ["q"]


def test_workers_with_the_same_servers_are_in_one_pool_whatever_the_order(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pools_of("ab") == pools_of("ba") != pools_of("abc")
    assert pools_of("ab", "named") == ("named", *pools_of("ab"))
    before = pools_of("ab")
    monkeypatch.setattr("plugins_contract.pools.NEWEST_VERSION", NEWER)
    assert pools_of("ab") != before
