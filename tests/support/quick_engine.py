"""`python -m tests.support.quick_engine`: the engine with a lease so short that a test can wait for its end."""

import sys

from dialog_engine.chat.ownership import OwnershipTimes
from dialog_engine.main import main, serve
from dialog_engine.wiring.times import EngineTimes

LEASE_SECONDS = 4.0

if __name__ == "__main__":
    if sys.argv[1:]:
        main()
    serve(EngineTimes(ownership=OwnershipTimes(LEASE_SECONDS, LEASE_SECONDS / 4, LEASE_SECONDS / 10)))
