"""`python -m tests.support.quick_engine`: the engine with a lease so short that a test can wait for its end."""

from dialog_engine.chat import ownership
from dialog_engine.main import main

LEASE_SECONDS = 4.0

if __name__ == "__main__":
    ownership.LEASE_SECONDS = LEASE_SECONDS
    ownership.RENEW_SECONDS = LEASE_SECONDS / 4
    ownership.LOOK_SECONDS = LEASE_SECONDS / 10
    main()
