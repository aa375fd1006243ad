"""What is believed of catalogs in Redis: each change by somebody without a request key is refused, and said."""

from collections.abc import Callable

import msgspec
import pytest

from plugins_contract.catalog import HEARTBEAT_STALE_MS, ServerHeartbeat, ServerState
from plugins_contract.signing import RequestKeys
from plugins_contract.trust import CatalogTrust, digest_of, heartbeat_fields

KEYS, FOREIGN = RequestKeys(["k" * 32]), RequestKeys(["f" * 32])
NOW = 1_000_000_000
CATALOG = b'{"server":"demo"}'
Fields = dict[bytes, bytes]


def beat(at: int = NOW, *, keys: RequestKeys = KEYS, server: str = "demo") -> Fields:
    heartbeat = ServerHeartbeat(state=ServerState.READY, at=at, catalog=digest_of(CATALOG))
    fields = heartbeat_fields(keys, server, "w", heartbeat)
    return {name.encode(): data.encode() if isinstance(data, str) else data for name, data in fields.items()}


def moved(fields: Fields) -> Fields:
    return {name.replace(b":w", b":other"): value for name, value in fields.items()}


def edited(fields: Fields) -> Fields:
    return fields | {b"worker:w": fields[b"worker:w"].replace(b"ready", b"failed")}


ATTACKS: dict[str, Callable[[], Fields]] = {
    "not signed": lambda: {b"worker:w": beat()[b"worker:w"]},
    "not readable": lambda: {b"worker:w": b"{]", b"signature:w": b"\xff"},
    "signed with another key": lambda: beat(keys=FOREIGN),
    "of another server": lambda: beat(server="other"),
    "of another worker": lambda: moved(beat()),
    "edited": lambda: edited(beat()),
    "an older one of its worker": lambda: beat(NOW - 1),
}


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_heartbeat_that_its_worker_did_not_sign_last_is_refused(attack: str) -> None:
    trust = CatalogTrust(KEYS)
    assert trust.judge("demo", beat(), NOW).attests(digest_of(CATALOG))
    judged = trust.judge("demo", ATTACKS[attack](), NOW)
    assert (judged.beats, bool(judged.refused)) == ((), True)


@pytest.mark.parametrize("at", [NOW - HEARTBEAT_STALE_MS - 1, NOW + HEARTBEAT_STALE_MS + 1])
def test_a_catalog_is_believed_only_while_a_heartbeat_is_fresh(at: int) -> None:
    judged = CatalogTrust(KEYS).judge("demo", beat(at), NOW)
    assert (judged.attests(digest_of(CATALOG)), judged.refused) == (False, "")
    fresh = CatalogTrust(KEYS).judge("demo", beat(), NOW)
    assert (fresh.attests(digest_of(b"{}")), bool(fresh.unattested)) == (False, True)


def test_a_clock_that_was_set_back_does_not_refuse_workers_for_as_long() -> None:
    trust = CatalogTrust(KEYS)
    later = NOW + 3_600_000
    assert trust.judge("demo", beat(later), later).beats
    assert trust.judge("demo", beat(), NOW).beats


def test_without_keys_everything_is_believed() -> None:
    judged = CatalogTrust(RequestKeys()).judge("demo", {b"worker:w": beat()[b"worker:w"]}, NOW)
    assert (len(judged.beats), judged.attests("anything"), judged.refused) == (1, True, "")


def test_an_old_release_reads_a_signed_heartbeat() -> None:
    fields = beat()
    assert msgspec.json.decode(fields[b"worker:w"])["state"] == "ready"
    assert [name for name in fields if name.startswith(b"worker:")] == [b"worker:w"]
