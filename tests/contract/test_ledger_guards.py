"""Every guard of the ledger scripts, taken out in turn: the test that watches over it must fail.

A mark of that test names the guard: `guard(script, text, without="", **arguments of the test)`. A test here fails when
a guard was reworded (say in the mark how it reads now) or when nothing notices that it is gone (write the test that
does, and mark it).
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path

import pytest
from redis.exceptions import ResponseError

from plugins_contract.ledger import scripts
from tests.marks import exhaustive, promise, smoke
from tests.support.ledger import Bench

pytestmark = [exhaustive("tests of the ledger that are run again, each without one guard")]

LUA = Path(scripts.__file__).parent


@dataclass(frozen=True, slots=True)
class Guard:
    """`text`, in the script `script`, is what makes `scenario` hold; `without` stands there once it is gone."""

    scenario: Callable[[Bench], Awaitable[None]]
    script: str
    text: str
    without: str = ""


TESTS = [
    test
    for path in sorted(Path(__file__).parent.glob("test_*.py"))
    if path.name != Path(__file__).name
    for test in vars(import_module(f"tests.contract.{path.stem}")).values()
]
GUARDS = [
    Guard(partial(test, **mark.kwargs), *mark.args)
    for test in TESTS
    for mark in getattr(test, "pytestmark", ())
    if mark.name == "guard"
]


def named(guard: Guard) -> str:
    return f"{guard.script}: {guard.text.strip()}"


def script(guard: Guard) -> str:
    return (LUA / f"{guard.script}.lua").read_text()


@smoke
def test_each_guard_is_in_its_script_once() -> None:
    assert GUARDS
    assert [named(guard) for guard in GUARDS if script(guard).count(guard.text) != 1] == []


@promise("every guard of the ledger is watched by a test", only_in_test_all="runs tests once for each guard")
@pytest.mark.parametrize("guard", GUARDS, ids=named)
async def test_without_the_guard_its_test_fails(guard: Guard, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    text = script(guard)
    shipped = scripts.load

    def crippled(name: str) -> str:
        return shipped(name).replace(text, text.replace(guard.text, guard.without))

    monkeypatch.setattr(scripts, "load", crippled)
    with pytest.raises((AssertionError, TimeoutError, ResponseError)):
        await guard.scenario(bench)
    await bench.redis.flushall()  # a crippled script may well leave keys behind
