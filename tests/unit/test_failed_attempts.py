"""How often an address may fail to prove who it is, and who is still served from there."""

import pytest
from pydantic import SecretStr

from dialog_engine.errors import TooManyAttemptsError, UnauthenticatedError
from dialog_engine.identity.api_keys import ApiKeys
from dialog_engine.identity.authenticator import Authenticator
from dialog_engine.identity.failed_attempts import MOST_ADDRESSES, FailedAttempts
from tests.marks import promise
from tests.support.hand_clock import HandClock


@promise("wrong keys are slowed down, and right ones behind the same address are served")
def test_after_the_limit_an_address_waits_and_then_gets_one_attempt_after_the_other() -> None:
    clock = HandClock()
    attempts = FailedAttempts(10, now=clock)
    for _ in range(10):
        assert attempts.wait("10.0.0.1") == 0
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 6
    assert attempts.wait("10.0.0.2") == 0
    clock.now += 5.9
    assert attempts.wait("10.0.0.1") == 1
    clock.now += 0.2
    assert attempts.wait("10.0.0.1") == 0
    attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 6
    clock.now += 120
    for _ in range(10):
        assert attempts.wait("10.0.0.1") == 0
        attempts.failed("10.0.0.1")
    assert attempts.wait("10.0.0.1") == 6, "what was not used does not add up"


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2001:db8::1", "2001:db8::ffff:1", True),
        ("2001:db8::1", "2001:db8:0:1::1", False),
        ("::ffff:10.0.0.1", "10.0.0.1", True),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.2", False),
        ("fe80::1%eth0", "fe80::2%eth1", True),
        ("10.0.0.1", "10.0.0.2", False),
        ("", "", True),
    ],
)
def test_an_ipv6_network_is_one_address(first: str, second: str, same: bool) -> None:
    attempts = FailedAttempts(1, now=HandClock())
    attempts.failed(first)
    assert (attempts.wait(second) > 0) == same


def test_the_number_of_addresses_is_bounded() -> None:
    attempts = FailedAttempts(1, now=HandClock())
    addresses = [f"10.0.{n // 250}.{n % 250}" for n in range(MOST_ADDRESSES + 100)]
    for address in addresses:
        attempts.failed(address)
    assert len(attempts) == MOST_ADDRESSES
    assert (attempts.wait(addresses[0]), attempts.wait(addresses[-1]) > 0) == (0, True)


KEYS = {"ann": SecretStr("a key of ann's"), "bob": SecretStr("a key of bob's")}


@promise("wrong keys are slowed down, and right ones behind the same address are served")
async def test_valid_keys_are_served_from_an_address_that_fails() -> None:
    """Behind a proxy every client may have this address. Eleven wrong keys locked all of them out."""
    clock = HandClock()
    authenticator = Authenticator(ApiKeys(KEYS), FailedAttempts(10, now=clock))
    for n in range(10):
        with pytest.raises(UnauthenticatedError):
            await authenticator.authenticate(f"guess {n}", "10.0.0.1")
    with pytest.raises(TooManyAttemptsError) as refused:
        await authenticator.authenticate("guess 11", "10.0.0.1")
    assert refused.value.retry_in == 6
    for name in ("ann", "bob"):
        assert (await authenticator.authenticate(f"a key of {name}'s", "10.0.0.1")).subject == name
    clock.now += 6
    with pytest.raises(UnauthenticatedError):
        await authenticator.authenticate("guess 12", "10.0.0.1")
