"""`make upgrade`: replaces the containers of a Compose project by those of this version, while it is in use.

The order is Redis, if its definition has changed, the workers, the engines, the proxy. A new worker or engine is
started beside the old ones, and when it is healthy one old one is stopped: it lets its calls or turns end, or hands
them over. With `--back`, for the way to an earlier version, the order is the reverse. PostgreSQL, the monitoring and
the demos stay as they are. It may be run again: what is up to date stays.

One engine on its SQLite file cannot have another one beside it: it is replaced in its place, and requests wait.
"""

import argparse
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
READY_SECONDS = 180
LOG_LINES = "20"
Container = dict[str, Any]


class UpgradeError(Exception):
    """The upgrade cannot go on. What was replaced stays: both versions work together."""


@dataclass(frozen=True)
class Project:
    """The project of the docker-compose.yml in a folder."""

    folder: Path

    def docker(self, *arguments: str) -> str:
        """What a command of Docker prints. Raises UpgradeError when it fails; its own output was shown."""
        command = ["docker", *arguments]
        done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode:
            raise UpgradeError(f"`{' '.join(command)}` ended with {done.returncode}")
        return done.stdout

    def config(self) -> dict[str, Any]:
        """The files as Compose reads them."""
        return json.loads(self.docker("compose", "config", "--format", "json"))

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
        settings = self.docker("compose", "config", "--hash", service).split()[-1]
        return [
            each
            for each in self.containers(service)
            if (each["Image"], each["Config"]["Labels"]["com.docker.compose.config-hash"]) != (image, settings)
        ]

    def up(self, service: str, *options: str) -> None:
        """Start a service alone, and wait until it is healthy. Raises UpgradeError."""
        wait = ("--wait", "--wait-timeout", str(READY_SECONDS))
        self.docker("compose", "up", "--detach", "--no-deps", "--no-build", *wait, *options, service)

    def replace(self, service: str, old: Container) -> None:
        """Replace one container by a new one that is healthy before the old one is stopped.

        Raises:
            UpgradeError: the new container is not healthy. The end of its log was shown, it was removed, and the
                others run.
        """
        before = {each["Id"] for each in self.containers(service)}
        try:
            self.up(service, "--no-recreate", "--scale", f"{service}={len(before) + 1}")
        except BaseException:
            for each in self.containers(service):
                if each["Id"] not in before:
                    print(
                        self.docker("logs", "--tail", LOG_LINES, each["Id"]), flush=True
                    )  # it goes with the container
                    self.docker("rm", "--force", each["Id"])
            raise
        self.docker("stop", "--time", str(old["Config"].get("StopTimeout") or 10), old["Id"])
        self.docker("rm", old["Id"])

    def workers(self) -> list[str]:
        """The services of all pools."""
        services = self.config()["services"].items()
        pools = [name for name, service in services if "WORKER_POOL" in (service.get("environment") or {})]
        return ["worker", *(name for name in pools if name != "worker")]

    def engines_share_a_store(self) -> bool:
        """Whether engines may run beside each other."""
        engine = self.config()["services"]["engine"]
        secrets = [each.get("target") or each["source"] for each in engine.get("secrets", [])]
        return bool(engine["environment"].get("DATABASE_URL")) or any(each.endswith("database_url") for each in secrets)


def upgrade(project: Project, *, back: bool = False, restart: bool = False) -> None:
    """Replace what is not up to date; with `restart` all workers and engines.

    Raises:
        UpgradeError: something could not be replaced.
    """
    workers = project.workers()
    beside = [*workers, "engine"] if project.engines_share_a_store() else workers
    order = [*workers, "engine", "proxy"]
    project.docker("compose", "build", *order)
    for service in reversed(order) if back else ("redis", *order):
        everything = restart and service not in ("redis", "proxy")
        for old in project.containers(service) if everything else project.outdated(service):
            if service in beside:
                project.replace(service, old)
            else:
                # A proxy that waits for the end of its streams does not listen: it cuts them, clients connect again.
                project.up(service, "--force-recreate", *(("--timeout", "0") if service == "proxy" else ()))
            print(f"upgrade: {old['Name'].lstrip('/')} is replaced", flush=True)
    print("upgrade: everything is up to date", flush=True)


def main() -> int:
    """The exit code: 1 when the upgrade could not go on; the reason was printed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--back", type=Path, metavar="FOLDER", help="to the earlier version whose files are in FOLDER")
    parser.add_argument("--restart", action="store_true", help="replace all workers and engines")
    options = parser.parse_args()
    try:
        upgrade(Project(options.back or ROOT), back=options.back is not None, restart=options.restart)
    except UpgradeError as error:
        print(f"upgrade: {error}. What was replaced stays, and this may be run again", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
