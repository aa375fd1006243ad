"""`python -m tests.conformance`: the official conformance suite against the worker, through the API of an engine.

It downloads the suite, and the Node.js that it needs, by npm into a folder of its own. All scenarios for clients are
run but those of `auth/` and of extensions, in each version of the protocol that has them from 2025-11-25 on.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.processes import ROOT

SUITE = "@modelcontextprotocol/conformance@0.2.0-alpha.12"
NODE = "node@22"
OLD, NEW = "2025-11-25", "2026-07-28"
RUNS = (
    ("initialize", OLD),
    ("tools_call", OLD),
    ("tools_call", NEW),
    ("elicitation-sep1034-client-defaults", OLD),
    ("sse-retry", OLD),
    ("request-metadata", NEW),
    ("sep-2322-client-request-state", NEW),
    ("http-standard-headers", NEW),
    ("http-custom-headers", NEW),
    ("http-invalid-tool-headers", NEW),
    ("json-schema-ref-no-deref", NEW),
    ("json-schema-2020-12-preservation", OLD),
    ("json-schema-2020-12-preservation", NEW),
)
CLIENT = f"{sys.executable} -m tests.conformance.client"


def main() -> int:
    """Run the scenarios; returns how many failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("scenario", nargs="*", help="only these; by default all")
    parser.add_argument("--folder", type=Path, help="where the suite is, or is downloaded to; by default it is removed")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder: Path = options.folder or Path(temporary)
        suite = downloaded(folder)
        chosen = [each for each in RUNS if not options.scenario or each[0] in options.scenario]
        failed = [each for each in chosen if not passes(suite, *each)]
    print(f"{len(chosen) - len(failed)} of {len(chosen)} passed")
    return len(failed)


def downloaded(folder: Path) -> list[str]:
    """The command line of the suite."""
    modules = folder / "node_modules"
    script = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    if not script.exists():
        folder.mkdir(exist_ok=True)
        npm = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder), SUITE, NODE]
        subprocess.run(npm, check=True, capture_output=True)
    return [str(modules / "node" / "bin" / "node"), str(script)]


def passes(suite: list[str], scenario: str, version: str) -> bool:
    """Run one scenario; what the suite and the client say is shown when it fails."""
    options = ["--scenario", scenario, "--spec-version", version, "--timeout", "90000"]
    argv = [*suite, "client", "--command", CLIENT, *options]
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    print(f"{'passed' if ended.returncode == 0 else 'FAILED'} {scenario} {version}", flush=True)
    if ended.returncode:
        print(ended.stdout[-6000:], ended.stderr[-6000:], sep="\n")
    return ended.returncode == 0


if __name__ == "__main__":
    sys.exit(min(main(), 1))
