"""`make upgrade`: replaces the containers of a Compose stack by those of this version, while it is in use.

The order is Redis if its definition has changed, the workers, the engines, the proxy. A new worker or engine is started beside
the old ones, and one old one is stopped when it is healthy. `--back`, for the way to an earlier version, is the
reverse. PostgreSQL, the monitoring and the demos stay as they are. It may be run again: what is up to date stays.

One engine on its SQLite file cannot have another one beside it: it is replaced in its place, and requests wait.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
ORDER = ("redis", "worker", "engine", "proxy")
BESIDE = ("worker", "engine")
"""The services whose new container runs beside the old one."""
READY_SECONDS = 180
Container = dict[str, Any]


class UpgradeError(Exception):
    """The upgrade cannot go on. What was replaced stays: both versions work together."""


@dataclass(frozen=True)
class Stack:
    """The project of the docker-compose.yml in a folder; `options` are those of `docker compose`."""

    folder: Path = ROOT
    options: Sequence[str] = ()

    def docker(self, *arguments: str) -> str:
        """What a command of Docker prints. Raises UpgradeError when it fails; its own output was shown."""
        command = ["docker", *arguments]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise UpgradeError(f"`{' '.join(command)}` ended with {done.returncode}")
        return done.stdout

    def compose(self, *arguments: str) -> str:
        """What `docker compose` prints. Raises UpgradeError."""
        return self.docker("compose", *self.options, *arguments)

    def config(self) -> dict[str, Any]:
        """The files as Compose reads them."""
        return json.loads(self.compose("config", "--format", "json"))

    def containers(self, service: str) -> list[Container]:
        """The containers of a service, the oldest first."""
        labels = {"project": self.config()["name"], "service": service, "oneoff": "False"}
        filters = [f"--filter=label=com.docker.compose.{name}={value}" for name, value in labels.items()]
        ids = self.docker("ps", "--all", "--quiet", *filters).split()
        found: list[Container] = json.loads(self.docker("inspect", *ids)) if ids else []
        return sorted(found, key=lambda each: each["Created"])

    def outdated(self, service: str) -> list[Container]:
        """Those that have another image or other settings than the files say now."""
        config = self.config()
        name = config["services"][service].get("image", f"{config['name']}-{service}")
        image = self.docker("image", "inspect", "--format", "{{.Id}}", name).strip()
        settings = self.compose("config", "--hash", service).split()[-1]
        return [
            each
            for each in self.containers(service)
            if (each["Image"], each["Config"]["Labels"]["com.docker.compose.config-hash"]) != (image, settings)
        ]

    def up(self, service: str, *options: str) -> None:
        """Start a service alone, and wait until it is healthy. Raises UpgradeError."""
        wait = ("--wait", "--wait-timeout", str(READY_SECONDS))
        self.compose("up", "--detach", "--no-deps", "--no-build", *wait, *options, service)

    def replace(self, service: str, old: Container) -> None:
        """Replace one container by a new one that is healthy before the old one is stopped.

        Raises:
            UpgradeError: the new container is not healthy. It was removed, and the others run.
        """
        before = {each["Id"] for each in self.containers(service)}
        try:
            self.up(service, "--no-recreate", "--scale", f"{service}={len(before) + 1}")
        except BaseException:
            for each in self.containers(service):
                if each["Id"] not in before:
                    self.docker("rm", "--force", each["Id"])
            raise
        self.docker("stop", "--time", str(old["Config"].get("StopTimeout") or 10), old["Id"])
        self.docker("rm", old["Id"])


def upgrade(stack: Stack, *, back: bool = False, restart: bool = False) -> None:
    """Replace what is not up to date; with `restart` all workers and engines.

    Raises:
        UpgradeError: something could not be replaced.
    """
    stack.compose("build", *ORDER[1:])
    alone = not shares_its_store(stack)
    for service in reversed(ORDER) if back else ORDER:
        beside = service in BESIDE and not (service == "engine" and alone)
        for old in stack.containers(service) if restart and service in BESIDE else stack.outdated(service):
            if beside:
                stack.replace(service, old)
            else:
                # A proxy that waits for the end of its streams does not listen meanwhile: clients connect again at once.
                stack.up(service, "--force-recreate", *(("--timeout", "0") if service == "proxy" else ()))
            print(f"upgrade: {old['Name'].lstrip('/')} is replaced", flush=True)
    print("upgrade: everything is up to date", flush=True)


def shares_its_store(stack: Stack) -> bool:
    """Whether engines may run beside each other: they have a PostgreSQL."""
    engine = stack.config()["services"]["engine"]
    targets = [each.get("target") or each["source"] for each in engine.get("secrets", [])]
    return bool(engine["environment"].get("DATABASE_URL")) or any(each.endswith("database_url") for each in targets)


def main() -> int:
    """The exit code: 1 when the upgrade could not go on; the reason was printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--back", action="store_true", help="to an earlier version: engines first, then workers")
    parser.add_argument("--folder", type=Path, default=ROOT, help="the files of the version to change to; this one's")
    parser.add_argument("--restart", action="store_true", help="replace all workers and engines")
    parser.add_argument("compose", nargs="*", help="options of docker compose behind --, such as -f FILE")
    options = parser.parse_args()
    try:
        upgrade(Stack(options.folder, tuple(options.compose)), back=options.back, restart=options.restart)
    except UpgradeError as error:
        print(f"upgrade: {error}; what was replaced stays, and this may be run again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
