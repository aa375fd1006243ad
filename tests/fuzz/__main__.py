"""`python -m tests.fuzz NAME [--seconds 600] [--seed 1]`: random input until the time is up. Fails on a finding."""

import argparse
import asyncio
import sys

from tests.fuzz.fuzzers import FUZZERS
from tests.fuzz.loop import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(FUZZERS)}; all if left out")
    parser.add_argument("--seconds", type=float, default=600, help="how long each")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; a finding names its own")
    given = parser.parse_args()
    if given.seconds <= 0:
        parser.error("--seconds must be more than 0")
    if unknown := sorted({*given.names} - FUZZERS.keys()):
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(FUZZERS)}")
    found = 0
    for name in given.names or FUZZERS:
        result = asyncio.run(run(FUZZERS[name], given.seconds, given.seed))
        print(f"{name}: {', '.join(f'{count:,} {what}' for what, count in result.counts.items())}")
        print(
            *(f"{name}: {finding}" for finding in result.findings), f"{name}: {len(result.findings)} findings", sep="\n"
        )
        sys.stdout.flush()
        found += len(result.findings)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
