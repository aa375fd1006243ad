"""`python -m tests.chaos [--full] [--store sqlite|postgres] [scenario …]`: run scenarios, print what they found."""

import argparse
import importlib
import json
import pkgutil
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, get_args

from tests.chaos import scenarios
from tests.chaos.report import Report, Scenario, Size, UnableHereError
from tests.support.store import Kind

ARTIFACTS = Path("test-artifacts/chaos")


def main() -> int:
    """Exit status 1 when anything did not hold."""
    names = [module.name for module in pkgutil.iter_modules(scenarios.__path__)]
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("scenarios", nargs="*", metavar="scenario", help=f"one or more of: {', '.join(names)}")
    parser.add_argument("--full", action="store_true", help="the long form, whose figures are in docs/reliability.md")
    parser.add_argument("--store", choices=get_args(Kind), help="only on this one, where a scenario knows both")
    options = parser.parse_args()
    if unknown := set(options.scenarios) - set(names):
        parser.error(f"no such scenario: {', '.join(sorted(unknown))}; there are: {', '.join(names)}")
    size = Size.FULL if options.full else Size.SHORT
    held = [
        _run(name, size, store)
        for name in options.scenarios or names
        for store in _stores(name)
        if store is None or options.store in (None, store)
    ]
    return 0 if all(held) else 1


def _scenario(name: str) -> Any:
    return importlib.import_module(f"{scenarios.__name__}.{name}")


def _stores(name: str) -> Sequence[Kind | None]:
    """The stores that a scenario is run on, one after the other; None for one that does not ask."""
    return getattr(_scenario(name), "STORES", (None,))


def _run(name: str, size: Size, store: Kind | None) -> bool:
    scenario: Scenario = _scenario(name)
    options: dict[str, Any] = {"store": store} if store else {}
    title = f"{name}-{store}" if store else name
    print(f"\n=== {title} ({size})", flush=True)
    begun = time.monotonic()
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix=f"chaos-{title}-") as folder,
        (ARTIFACTS / f"{title}-{size}.log").open("w") as log,
    ):
        try:
            with redirect_stdout(log):  # what every process wrote is long
                report = scenario.run(size, Path(folder), **options)
        except UnableHereError as why:
            print(f"skipped: {why}", flush=True)
            return True
    _print(report, time.monotonic() - begun)
    (ARTIFACTS / f"{title}-{size}.json").write_text(json.dumps(asdict(report), indent=2))
    return report.passed


def _print(report: Report, seconds: float) -> None:
    for figure, value in report.figures.items():
        print(f"  {figure}: {value:,.4g}" if isinstance(value, float) else f"  {figure}: {value}")
    for note in report.notes:
        print(f"  note: {note}")
    for finding in report.findings:
        print(f"  BROKEN: {finding}")
    print(f"{'held' if report.passed else 'BROKEN'} after {seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
