"""Which worker holds a session with a server that keeps state: chosen by ENQUEUE, held by a lease, and found by all."""

import msgspec
import pytest

from plugins_contract.encryption import CLEAR
from plugins_contract.keys import GROUP, Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.ledger.replies import Loss
from plugins_contract.ledger.session_leases import HeldElsewhere, Holding, SessionLease, SessionLeases, forget_sessions
from plugins_contract.messages import ToolCallRequested, new_id
from plugins_contract.pools import Route, own_pool
from plugins_contract.sessions import SessionMode, owner, owner_of
from tests.support.ledger import LEASE_MS, Bench

pytestmark = pytest.mark.every_redis

A, B = own_pool("a"), own_pool("b")
KEYS = Keys()
OWNER = owner(SessionMode.CONVERSATION, "session")
"""That of the requests of a bench."""


class Chosen:
    """An engine whose directory has named this pool."""

    def __init__(self, pool: str, mode: SessionMode = SessionMode.CONVERSATION) -> None:
        self._route = Route(pool, mode)

    async def route(self, server: str, version: int) -> Route:
        return self._route


async def opened(bench: Bench) -> None:
    """The workers `a` and `b` have streams of their own."""
    for pool in (A, B):
        await bench.command("XGROUP", "CREATE", KEYS.requests_of(pool), GROUP, "0", "MKSTREAM")


async def asked(
    bench: Bench, pool: str, *, subject: str = "somebody", mode: SessionMode | None = None
) -> ToolCallRequested:
    chosen = Chosen(pool, mode or SessionMode.CONVERSATION)
    request = msgspec.structs.replace(await bench.request(), subject=subject)
    await EngineLedger(bench.redis, bench.keys, pools=chosen, cipher=CLEAR).enqueue(request)
    return request


async def lengths(bench: Bench) -> tuple[int, int, int]:
    """How many requests are for `a`, for `b`, and for all."""
    a, b, all_ = [await bench.redis.xlen(key) for key in (*map(KEYS.requests_of, (A, B)), KEYS.requests)]
    return a, b, all_


def worker(bench: Bench, pool: str, lease_ms: int = LEASE_MS) -> SessionLeases:
    return SessionLeases(bench.redis, bench.keys, pool, lease_ms=lease_ms)


async def holding(bench: Bench, pool: str, lease_ms: int = LEASE_MS, *, token: str = "") -> Holding:
    held = await worker(bench, pool, lease_ms).hold("demo", OWNER, token or new_id())
    assert isinstance(held, Holding)
    return held


@pytest.mark.guard("enqueue", "if is_held(till, holder, streams) then requests = holder end")
async def test_two_first_calls_go_to_one_worker_whichever_the_engines_name(bench: Bench) -> None:
    await opened(bench)
    await asked(bench, A)
    await asked(bench, B)
    assert await lengths(bench) == (2, 0, 0)
    assert await worker(bench, B).hold("demo", OWNER, new_id()) == HeldElsewhere(A)
    assert not (await holding(bench, A)).lost


async def test_an_audit_finds_a_call_in_the_stream_of_a_holder(bench: Bench) -> None:
    await opened(bench)
    request = await asked(bench, A)
    assert await bench.audit(request) == [None]
    await bench.redis.delete(KEYS.requests_of(A))
    assert await bench.audit(request) == [Loss.VANISHED]


async def test_other_owners_are_held_by_themselves(bench: Bench) -> None:
    await opened(bench)
    await asked(bench, A, subject="ann", mode=SessionMode.SUBJECT)
    await asked(bench, B, subject="bob", mode=SessionMode.SUBJECT)
    await asked(bench, B, subject="ann", mode=SessionMode.SUBJECT)
    assert await lengths(bench) == (2, 1, 0)


@pytest.mark.guard("sessions", "till > now_ms() and ", "")
async def test_a_holder_whose_lease_is_over_is_followed_by_another_that_knows_of_the_loss(bench: Bench) -> None:
    await opened(bench)
    first = await holding(bench, A, lease_ms=0)
    await asked(bench, B)
    assert await lengths(bench) == (0, 1, 0)
    second = await holding(bench, B)
    assert second.lost
    assert second.lease.fence > first.lease.fence


@pytest.mark.guard("sessions", "string.sub(stream, 1, #streams) == streams and ", "")
async def test_a_forged_holder_gets_no_request_on_another_stream(bench: Bench) -> None:
    await opened(bench)
    await bench.redis.xadd("events.ltm", {"event": "{}"})
    await bench.redis.hset(KEYS.session(OWNER), "demo", f"1 {2**45} 1 events.ltm")
    await asked(bench, B)
    assert await lengths(bench) == (0, 1, 0)
    assert await bench.redis.xlen("events.ltm") == 1


async def test_without_the_stream_of_a_worker_all_workers_get_the_call(bench: Bench) -> None:
    await asked(bench, A)
    assert await lengths(bench) == (0, 0, 1)
    assert not await bench.redis.exists(KEYS.session(OWNER))


@pytest.mark.guard("keep", "fence > mine or ", "")
async def test_a_lease_is_renewed_until_another_worker_holds_the_session(bench: Bench) -> None:
    await opened(bench)
    lease = (await holding(bench, A, lease_ms=0)).lease
    assert worker(bench, A).keep(bench.thread, [lease]) == []
    assert await worker(bench, B).hold("demo", OWNER, new_id()) == HeldElsewhere(A)
    await worker(bench, A).close([lease])
    assert (await holding(bench, B)).lost
    assert worker(bench, A).keep(bench.thread, [lease]) == [lease]


async def test_what_redis_has_lost_of_a_session_is_restored(bench: Bench) -> None:
    await opened(bench)
    lease = (await holding(bench, A)).lease
    await bench.redis.flushall()
    await opened(bench)
    assert worker(bench, A).keep(bench.thread, [lease]) == []
    assert await worker(bench, B).hold("demo", OWNER, new_id()) == HeldElsewhere(A)


@pytest.mark.guard("keep", " or forgotten", "")
async def test_a_deleted_owner_is_kept_by_nobody_and_may_come_again(bench: Bench) -> None:
    await opened(bench)
    lease = (await holding(bench, A)).lease
    await forget_sessions(bench.redis, bench.keys, [OWNER])
    assert worker(bench, A).keep(bench.thread, [lease]) == [lease]
    assert not (await holding(bench, B)).lost


@pytest.mark.guard("hold", " or opened == token")
@pytest.mark.guard("hold", "opened == '0' or opened == token", "opened == '0' or opened ~= '1'")
async def test_hold_asked_again_after_a_lost_reply_finds_no_earlier_session(bench: Bench) -> None:
    await opened(bench)
    first, again = [await holding(bench, A, token="1a") for _ in range(2)]
    assert (first.lost, again.lost) == (False, False)
    assert (await holding(bench, A, token="2b")).lost
    assert (await holding(bench, A, token="2b")).lost


async def test_a_session_that_was_never_opened_is_not_lost(bench: Bench) -> None:
    await opened(bench)
    await worker(bench, A).close([(await holding(bench, A)).lease], opened=False)
    assert not (await holding(bench, B)).lost


@pytest.mark.guard("close", " or fence ~= mine", "")
async def test_a_worker_ends_no_lease_but_its_own(bench: Bench) -> None:
    await opened(bench)
    await holding(bench, A)
    await worker(bench, B).close([SessionLease("demo", OWNER, 1)])
    assert await worker(bench, B).hold("demo", OWNER, new_id()) == HeldElsewhere(A)


async def test_a_call_of_a_shared_server_leaves_no_trace_of_a_session(bench: Bench) -> None:
    await opened(bench)
    await asked(bench, A, mode=SessionMode.SHARED)
    assert await bench.redis.keys(KEYS.session("*")) == []


async def test_a_request_without_a_subject_has_the_session_of_its_conversation(bench: Bench) -> None:
    request = msgspec.structs.replace(await bench.request(), subject="")
    assert owner_of(SessionMode.SUBJECT, request) == OWNER
