"""What the drill breaks, in this order: what looks back for long comes late."""

import re
from collections.abc import Callable

from deploy.runbook_page import RUNBOOK
from tests.drill.drill import Drill, Fault
from tests.drill.load import flood
from tests.support.waiting import wait_until_blocking

POISON = """
import redis
keys = redis.Redis.from_url(open("/run/callstream/redis_url").read().strip())
keys.xadd("events.plugins", {"event": "{\\"eventType\\": \\"Nonsense\\"}"})
"""
BALLAST = """
import redis, time
from redis.backoff import NoBackoff
from redis.retry import Retry
keys = redis.Redis.from_url(open("/run/callstream/redis_url").read().strip(), retry=Retry(NoBackoff(), 0))
size = 1_000_000
while True:
    try:
        keys.xadd("rpc.plugins.ballast", {"x": "x" * size})
    except redis.exceptions.OutOfMemoryError:
        size = 100
        time.sleep(0.1)
"""
"""It uses up what becomes free, until Redis is restarted."""
BUILD = "drilled"
PS = "docker compose ps --all engine worker redis postgres"
LOCKS = """
DO $$ BEGIN LOOP
    LOCK TABLE turns IN ACCESS EXCLUSIVE MODE; PERFORM pg_sleep(1); COMMIT; PERFORM pg_sleep(0.05);
END LOOP; END $$
"""
WAITING = frozenset({"RequestsWait", "ToolTimeouts", "ToolTimeoutsSlow", "ToolFailures", "ToolFailuresSlow"})
"""What follows when calls are not run for minutes."""


def of_runbook(entry: str) -> tuple[str, ...]:
    """The commands of the block in this entry of the runbook."""
    _, _, text = RUNBOOK.read_text().partition(f"### {entry}\n")
    [block] = re.findall(r"```sh\n(.*?)\n```", text.partition("\n### ")[0], re.DOTALL)
    return tuple(re.split(r"\n(?=\S)", block))


def killed(**services: int) -> Callable[[Drill], object]:
    """Kill so many containers of each service."""
    return lambda drill: (
        drill.docker("kill", *(name for service, count in services.items() for name in drill.named(service, count)))
        and None
    )


def docker(command: str, service: str) -> Callable[[Drill], object]:
    """Run a command of Docker on the containers of a service."""
    return lambda drill: drill.docker(*command.split(), *drill.named(service))


def run_in_worker(program: str, *options: str) -> Callable[[Drill], object]:
    """Run Python with the login of a worker."""
    return lambda drill: drill.docker("exec", *options, drill.named("worker")[0], "python", "-c", program)


def fed(drill: Drill) -> None:
    """Redis has no memory left. What ends it is written into `.env` too, as the runbook says."""
    run_in_worker(BALLAST, "--detach")(drill)
    drill.broken.callback(drill.stack.env.update, {"REDIS_MAXMEMORY": "1gb", "REDIS_MEMORY": "2g"})


def hung(drill: Drill) -> None:
    """The demo server accepts connections and answers nothing."""
    drill.docker("exec", *drill.named("demo-server"), "sh", "-c", "kill -STOP -1")


def slowed(drill: Drill) -> None:
    """A command of maintenance locks the turns for a second, again and again."""
    [postgres] = drill.named("postgres")
    drill.docker("exec", "--detach", postgres, "psql", "--username=callstream", f"--command={LOCKS}")


def flooded(drill: Drill) -> None:
    """One user asks as fast as it can."""
    drill.broken.enter_context(flood(drill.stack))


def filled(drill: Drill) -> None:
    """Nothing is left on the disk of PostgreSQL."""
    beside = ("run", "--rm", "--volume", f"{drill.stack.project}_postgres:/disk", "--entrypoint", "sh", "redis:8", "-c")
    drill.docker(*beside, "dd if=/dev/zero of=/disk/ballast bs=64k || true")
    drill.broken.callback(drill.docker, *beside, "rm /disk/ballast")


def restarted(drill: Drill) -> None:
    """Workers first, then engines, one at a time."""
    for name in [*drill.named("worker"), *drill.named("engine")]:
        drill.docker("restart", "--time", "60", name)
        wait_until_blocking(
            lambda name=name: "healthy" in drill.docker("inspect", "--format", "{{.State.Health.Status}}", name), 120
        )


def rebuilt(drill: Drill) -> None:
    """There is another build, whose commit is another one."""
    drill.stack.env["COMMIT"] = BUILD


def upgraded(drill: Drill) -> bool:
    """Whether all workers and engines are of that build."""
    running = drill.stack.containers("worker", "engine")
    return all(f"CALLSTREAM_COMMIT={BUILD}" in each["Config"]["Env"] for each in running)


def noted(drill: Drill) -> None:
    """The steps of a restore are the fault."""
    drill.in_backup = set(drill.stack.rows("SELECT arguments::json ->> 'token' FROM tool_calls"))


FAULTS = {
    "workers": Fault(
        "all workers killed", killed(worker=4), frozenset({"NoWorker"}),
        ("Workers", "Requests that wait", "Oldest waiting, oldest pending"),
        (PS, "docker compose start worker"),
        WAITING | {"WorkerDown", "CallsTakenOver"},
    ),
    "redis-stopped": Fault(
        "Redis stopped", docker("stop", "redis"), frozenset({"RedisDown"}),
        ("Redis answers", "Oldest request in the outbox"), (PS, "docker compose start redis"),
        WAITING | {"OutboxNotPublished"},
    ),
    "redis-frozen": Fault(
        "Redis frozen", docker("kill --signal STOP", "redis"), frozenset({"RedisDown"}),
        ("Redis answers", "Oldest request in the outbox"), (PS, "docker compose restart redis"),
        WAITING | {"OutboxNotPublished", "LeasesLost", "CallsTakenOver"},
    ),
    "redis-full": Fault(
        "Redis full", fed, frozenset({"RedisMemoryHigh", "OutboxNotPublished"}),
        ("Memory of Redis", "Oldest request in the outbox"),
        of_runbook("RedisMemoryHigh"),
        WAITING | {"LeasesLost", "CallsTakenOver"},
    ),
    "some": Fault(
        "3 of 4 workers and 1 of 3 engines killed", killed(worker=3, engine=1), frozenset({"WorkerDown", "EngineDown"}),
        ("Workers", "Engines that share the store", "Adoptions"),
        (PS, "docker compose start worker",
         "docker compose start engine"),
        frozenset({"CallsTakenOver"}), known="callstream:workers:least2m == 4 and callstream:engines:least2m == 3",
    ),
    "postgresql-stopped": Fault(
        "PostgreSQL stopped", docker("stop", "postgres"), frozenset({"StoreDown"}),
        ("The store answers", "Renewals of engine leases"), (PS, "docker compose start postgres"),
        frozenset({"EngineLeaseNotRenewed", "TurnErrors", "TurnErrorsSlow", "TurnsLost"}),
    ),
    "postgresql-slow": Fault(
        "PostgreSQL slow", slowed, frozenset({"StoreSlow"}),
        ("Time of a renewal", "From the message to the first token"), of_runbook("StoreSlow"),
    ),
    "server-hung": Fault(
        "an MCP server hung", hung, frozenset({"McpServerBreakerOpen", "McpServerFailing"}),
        ("Workers that can use the server", "Circuit breaker", "Calls that did not succeed, by code"),
        ("docker compose restart demo-server",), WAITING | {"McpServerDown"}, callers=20,
    ),
    "server-dead": Fault(
        "an MCP server dead", killed(**{"demo-server": 1}), frozenset({"McpServerDown"}),
        ("Workers that can use the server", "Circuit breaker", "Calls that did not succeed, by code"),
        ("docker compose restart demo-server",), WAITING | {"McpServerBreakerOpen", "McpServerFailing"},
    ),
    "poison": Fault(
        "an entry that is no request", run_in_worker(POISON), frozenset({"ProducerMistakes"}),
        ("Dead letters", "Consumers of the group, new dead letters"),
        ("docker compose exec -T worker plugins-mcp dead list --since 1d",
         "docker compose exec -T worker plugins-mcp dead discard --all --since 7d --yes"),
    ),
    "flood": Fault(
        "a flood by one user", flooded, frozenset({"RequestsLimited"}), ("Requests refused, by code",),
        ("docker compose run --rm operator dialog-engine subjects",),
    ),
    "disk": Fault(
        "a full disk under PostgreSQL", filled, frozenset({"DiskAlmostFull"}),
        ("Free space of the disks", "The store answers"), ("docker compose logs --tail 50 postgres",),
        frozenset({"StoreDown", "EngineLeaseNotRenewed", "TurnErrors", "TurnErrorsSlow", "TurnsLost"}),
    ),
    "rolling": Fault("a restart of every worker and engine, one at a time", restarted, planned=True),
    "upgrade": Fault(
        "an upgrade to another build", rebuilt, steps=("make upgrade",), callers=8, planned=True, proof=upgraded
    ),
    "restore": Fault(
        "a restore", noted,
        steps=("make backup FILE=$DRILL_FOLDER/drill.dump", "make restore FILE=$DRILL_FOLDER/drill.dump"),
        may_follow=frozenset({"NoWorker", "NoEngine", "RedisDown", "WorkerDown", "EngineDown"}), serves=False,
    ),
}  # fmt: skip
