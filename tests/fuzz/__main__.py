"""`python -m tests.fuzz [--seconds 600] [--seed 1]`: random replies until the time is up. Fails if a rule is broken."""

import argparse
import sys

from tests.fuzz.tags import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600, help="how long")
    parser.add_argument("--seed", type=int, default=1, help="the first seed; a finding names its own")
    given = parser.parse_args()
    if given.seconds <= 0:
        parser.error("--seconds must be more than 0")
    result = run(given.seconds, given.seed)
    print(f"{result.replies:,} replies, {result.characters:,} characters, {result.calls:,} calls in noise")
    for finding in result.findings:
        print(finding)
    print(f"{len(result.findings)} findings")
    return bool(result.findings)


if __name__ == "__main__":
    sys.exit(main())
