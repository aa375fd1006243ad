"""What an engine keeps of resources: for how long, for whom, and how much."""

from typing import Any

import pytest

from dialog_engine.calls.read_cache import ReadCache, Reader
from dialog_engine.calls.resource_updates import MAX_PENDING, ResourceUpdates
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.reads import Part, ResourceRead
from plugins_contract.updates import WATCHED_MS, ResourcesUpdated
from tests.marks import promise

ANN, BOB = Reader("ann", ("user",)), Reader("bob", ("user",))


class Kept:
    def __init__(self, **limits: Any) -> None:
        self.now = 0.0
        self.cache = ReadCache(now=lambda: self.now, **limits)

    def put(self, uri: str = "x://a", reader: Reader = ANN, text: str = "text", **fields: Any) -> None:
        read = ResourceRead(contents=(Part(uri=uri, text=text),), **fields)
        outcome = ToolOutcome(CallState.SUCCEEDED, (TextBlock(text),))
        self.cache.put("docs", uri, reader, read, outcome, self.cache.mark("docs"))

    def has(self, uri: str = "x://a", reader: Reader = ANN, server: str = "docs") -> bool:
        return self.cache.get(server, uri, reader) is not None


@promise("a resource is kept as long as its server says, privately for each subject, and never where it says nothing")
def test_a_read_is_kept_for_its_time_and_no_longer_than_updates_are_watched() -> None:
    kept = Kept()
    nothing_said: list[dict[str, Any]] = [{}, {"ttl_ms": 0, "cache_scope": "public"}, {"cache_scope": "private"}]
    nothing_said.append({"ttl_ms": -5})
    for fields in nothing_said:
        kept.put(**fields)
        assert not kept.has()
    kept.put(ttl_ms=2_000)
    kept.now = 1.9
    assert kept.has()
    assert not kept.has(server="other")
    kept.now = 2.0
    assert not kept.has()
    kept.put(ttl_ms=100 * WATCHED_MS)
    kept.now += WATCHED_MS / 1000
    assert not kept.has()
    assert len(kept.cache) == kept.cache.size == 0


@promise("a resource is kept as long as its server says, privately for each subject, and never where it says nothing")
@pytest.mark.parametrize(("scope", "shared"), [("private", False), ("public", True), (None, False), ("other", False)])
def test_what_is_private_is_kept_for_its_reader_only(scope: str | None, shared: bool) -> None:
    kept = Kept()
    kept.put(ttl_ms=2_000, cache_scope=scope)
    assert kept.has()
    assert kept.has(reader=BOB) is shared
    assert kept.has(reader=Reader("ann", ("user", "staff"))) is shared


def test_what_is_kept_is_bounded_in_bytes_and_number() -> None:
    kept = Kept(max_bytes=100, max_entries=3)
    for number in range(4):
        kept.put(f"x://{number}", ttl_ms=2_000)
    assert [kept.has(f"x://{number}") for number in range(4)] == [False, True, True, True]
    kept.put("x://large", text="t" * 95, ttl_ms=2_000)
    assert (len(kept.cache), kept.cache.size) == (2, 99)
    kept.put("x://too-large", text="t" * 101, ttl_ms=2_000)
    assert not kept.has("x://too-large")
    assert kept.cache.size == 99


@promise("an update spoils what an engine keeps of a resource")
def test_an_update_spoils_what_is_kept_and_what_is_being_read() -> None:
    kept = Kept()
    for uri in ("x://a", "x://b"):
        kept.put(uri, ttl_ms=2_000)
    kept.put(reader=BOB, ttl_ms=2_000)
    updates = ResourceUpdates(kept.cache)
    read = ResourceRead(contents=(), ttl_ms=2_000)
    before = kept.cache.mark("docs")
    updates.receive(ResourcesUpdated(server="docs", uris=("x://a",)))
    assert [kept.has(), kept.has(reader=BOB), kept.has("x://b")] == [False, False, True]
    outcome = ToolOutcome(CallState.SUCCEEDED, (TextBlock("old"),))
    kept.cache.put("docs", "x://a", ANN, read, outcome, before)
    assert not kept.has()
    before = kept.cache.mark("docs")
    updates.receive(None)  # some may have been missed
    assert not kept.has("x://b")
    kept.cache.put("docs", "x://b", ANN, read, outcome, before)
    assert not kept.has("x://b")
    for _ in range(MAX_PENDING + 1):
        updates.receive(ResourcesUpdated(server="docs", uris=("x://a",)))
