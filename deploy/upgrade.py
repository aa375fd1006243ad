"""`make upgrade`: replaces the workers of a Compose stack, then its engines, one container at a time.

The images are built first. A new container is started beside the old ones, and one old container is stopped when the
new one is healthy: calls and turns are handed over, and clients notice nothing. `--back` is for the way to an earlier
version: engines first. It may be interrupted and run again: containers that are up to date stay.

One engine on its SQLite file cannot have another beside it: it is replaced in its place, in which clients wait.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ORDER = ("worker", "engine")
READY_SECONDS = 180


class UpgradeError(Exception):
    """The upgrade cannot go on. What was replaced stays: both versions work together."""


@dataclass(frozen=True)
class Compose:
    """The stack of one folder with a docker-compose.yml."""

    folder: Path = ROOT
    options: Sequence[str] = field(default_factory=tuple[str, ...])

    def run(self, *arguments: str) -> str:
        """What `docker compose` prints.

        Raises:
            UpgradeError: it failed; its own output was shown.
        """
        return _output(["docker", "compose", "--project-directory", str(self.folder), *self.options, *arguments])

    def config(self) -> dict[str, Any]:
        """The files as Compose reads them."""
        return json.loads(self.run("config", "--format", "json"))

    def containers(self, service: str) -> list[dict[str, Any]]:
        """The containers of a service, the oldest first."""
        ids = self.run("ps", "--all", "--quiet", service).split()
        found: list[dict[str, Any]] = json.loads(_output(["docker", "inspect", *ids])) if ids else []
        return sorted(found, key=lambda each: each["Created"])

    def outdated(self, service: str) -> list[dict[str, Any]]:
        """Those that have another image or other settings than the files say now."""
        config = self.config()
        name = config["services"][service].get("image", f"{config['name']}-{service}")
        image = _output(["docker", "image", "inspect", "--format", "{{.Id}}", name]).strip()
        settings = self.run("config", "--hash", service).split()[-1]
        return [
            each
            for each in self.containers(service)
            if (each["Image"], each["Config"]["Labels"]["com.docker.compose.config-hash"]) != (image, settings)
        ]


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise UpgradeError(f"{' '.join(command[:3])} … ended with {done.returncode}")
    return done.stdout


def replace(compose: Compose, service: str, old: Sequence[dict[str, Any]]) -> None:
    """Replace these containers one by one, each by a new one that is healthy before the old one is stopped.

    Raises:
        UpgradeError: a new container is not healthy. It was removed, and the old ones run.
    """
    for container in old:
        before = {each["Id"] for each in compose.containers(service)}
        up = ("up", "--detach", "--no-deps", "--no-build", "--no-recreate", "--wait")
        try:
            compose.run(*up, "--wait-timeout", str(READY_SECONDS), "--scale", f"{service}={len(before) + 1}", service)
        except UpgradeError as error:
            for each in compose.containers(service):
                if each["Id"] not in before:
                    _output(["docker", "rm", "--force", each["Id"]])
            raise UpgradeError(
                f"{service}: a new container was not healthy within {READY_SECONDS} s and was removed; the others run:"
                f" see its reason with `docker compose logs {service}`, and run this again ({error})"
            ) from None
        name = container["Name"].lstrip("/")
        _output(["docker", "stop", "--time", str(_grace(container)), container["Id"]])
        _output(["docker", "rm", container["Id"]])
        print(f"upgrade: {name} is replaced", flush=True)


def _grace(container: dict[str, Any]) -> int:
    """How long it may take to stop, as its `stop_grace_period` says."""
    return int(container["Config"].get("StopTimeout") or 10)


def shares_its_store(compose: Compose) -> bool:
    """Whether engines may run beside each other."""
    engine = compose.config()["services"]["engine"]
    return bool(engine["environment"].get("DATABASE_URL")) or any(
        each.get("target") == "/run/secrets/database_url" or each.get("source") == "database_url"
        for each in engine.get("secrets", [])
    )


def upgrade(compose: Compose, *, back: bool = False, restart: bool = False) -> None:
    """Replace what is not up to date; with `restart` everything.

    Raises:
        UpgradeError: something could not be replaced.
    """
    compose.run("build")
    for service in reversed(ORDER) if back else ORDER:
        old = compose.containers(service) if restart else compose.outdated(service)
        if service == "engine" and old and not shares_its_store(compose):
            compose.run("up", "--detach", "--no-deps", "--no-build", "--force-recreate", "--wait", service)
            print("upgrade: the engine is replaced", flush=True)
        else:
            replace(compose, service, old)
    for service in ("proxy", "demo-model", "demo-server"):
        if compose.outdated(service):
            # At once: a proxy that waits for the end of its streams does not listen meanwhile. Clients connect again.
            compose.run("up", "--detach", "--no-deps", "--no-build", "--timeout", "0", "--wait", service)
            print(f"upgrade: {service} is replaced", flush=True)
    print("upgrade: everything is up to date", flush=True)


def main() -> int:
    """The exit code: 1 when the upgrade could not go on; the reason was printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, default=ROOT, help="of the version to change to; this one by default")
    parser.add_argument("--back", action="store_true", help="to an earlier version: engines first, then workers")
    parser.add_argument("--restart", action="store_true", help="replace all containers, also those that are up to date")
    parser.add_argument("compose", nargs="*", help="options of docker compose behind --, such as -f FILE")
    options = parser.parse_args()
    try:
        upgrade(Compose(options.folder, tuple(options.compose)), back=options.back, restart=options.restart)
    except UpgradeError as error:
        print(f"upgrade: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
