"""Which pools of workers fit a call."""

import pytest

from callstream_runtime.pool_directory import READ_AGAIN_SECONDS
from dialog_engine.chat.held_questions import GONE_SECONDS
from dialog_engine.chat.times import TurnTimes
from plugins_contract.messages import NEWEST_VERSION
from plugins_contract.pools import SILENT_MS, Member, Pools, Room, Route, fitting, pools_of
from plugins_contract.sessions import SessionMode
from plugins_mcp.leases import LeaseTimes
from tests.marks import promise

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


def test_sessions_go_to_the_workers_with_the_most_room_and_to_none_of_an_earlier_release() -> None:
    def with_room(own: str, free: int, at: int = 1) -> Member:
        rooms = {"x": Room(mode=SessionMode.SUBJECT, free=free)}
        return Member(at=at, servers=("x",), pools=("p", own), reads=NEWEST_VERSION, sessions=rooms, own=own)

    members = {"a": with_room("own-a", 3), "b": with_room("own-b", 2), "c": with_room("own-c", 9, at=0)}
    pools = Pools(members | {"old": worker("x", "p")}, now_ms=10, silent_ms=10)
    chosen = [pools.with_room("x", NEWEST_VERSION) for _ in range(5)]
    assert chosen == [Route(f"own-{own}", SessionMode.SUBJECT) for own in ("a", "b", "a", "b", "a")]
    assert pools.with_room("y", NEWEST_VERSION) is None
    again = pools.read_again(members | {"b": with_room("own-b", 2, at=2)}, now_ms=10)
    assert again.with_room("x", NEWEST_VERSION) == Route("own-b", SessionMode.SUBJECT), "three were given to the other"


@promise("a killed worker's questions, answers and sessions go on within fifteen seconds")
def test_the_times_after_the_death_of_a_worker_add_up_to_less_than_fifteen_seconds() -> None:
    times = LeaseTimes()
    assert times.silent_ms == SILENT_MS == times.lease_ms, "what it held is free when its leases have ended"
    withdrawn = GONE_SECONDS + READ_AGAIN_SECONDS + TurnTimes().look
    moved = SILENT_MS / 1000 + 1.25 * times.sweep
    taken = moved + READ_AGAIN_SECONDS + 1.25 * times.sweep  # by a worker that still knew the dead one
    assert max(withdrawn, taken) <= 13.5
