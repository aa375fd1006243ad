"""Which errors of real servers count as an outage, and how they are described."""

from collections.abc import AsyncGenerator, Awaitable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from redis.exceptions import RedisError, ResponseError

from callstream_runtime.connections import command_client
from callstream_runtime.redis_errors import RedisUnavailable
from deploy.local.ports import free_port
from plugins_contract.encryption import CLEAR
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger, replies
from plugins_contract.messages import new_id
from tests.support.ledger import Bench
from tests.support.servers import LocalServer, embedded_binary
from tests.support.waiting import wait_until

pytestmark = pytest.mark.every_redis

USER, SECRET = "limited", "s3cr3t-of-mine"


async def failure(command: Awaitable[Any]) -> Exception:
    """What a command fails with."""
    with pytest.raises(RedisError) as caught:
        await command
    return caught.value


@pytest.fixture
async def admin(redis: Any) -> AsyncGenerator[Any]:
    """The server's settings are put back at the end."""
    yield redis
    await redis.execute_command("CONFIG", "SET", "maxmemory", "0")
    await redis.execute_command("CONFIG", "SET", "min-replicas-to-write", "0")
    await redis.execute_command("REPLICAOF", "NO", "ONE")
    await redis.execute_command("ACL", "DELUSER", USER)


def as_user(url: str, login: str) -> Any:
    return command_client(url.replace("redis://", f"redis://{login}@"), connections=1)


async def test_a_server_without_memory_is_an_outage_in_commands_pipelines_and_scripts(admin: Any) -> None:
    await admin.execute_command("CONFIG", "SET", "maxmemory", "1")
    pipeline = admin.pipeline(transaction=False)
    pipeline.set("key", "value")
    bench = Bench(admin, admin)

    for attempt in (admin.set("key", "value"), pipeline.execute(), bench.engine.enqueue(await bench.request())):
        error = await failure(attempt)
        assert isinstance(error, RedisUnavailable)
        assert (error.code, error.not_done) == ("OOM", True)


async def test_missing_replicas_a_replica_and_a_script_that_was_flushed_away_are_outages(admin: Any) -> None:
    await admin.execute_command("CONFIG", "SET", "min-replicas-to-write", "1")
    pipeline = admin.pipeline(transaction=False)
    pipeline.set("key", "value")
    assert isinstance(await failure(admin.set("key", "value")), RedisUnavailable)
    assert isinstance(await failure(pipeline.execute()), RedisUnavailable)

    await admin.execute_command("REPLICAOF", "127.0.0.1", free_port())
    assert isinstance(await failure(admin.set("key", "value")), RedisUnavailable)
    assert isinstance(await failure(admin.evalsha("0" * 40, 0)), RedisUnavailable)


async def test_a_busy_script_is_an_outage_and_a_group_that_exists_is_none(admin: Any, redis_url: str) -> None:
    await admin.execute_command("CONFIG", "SET", "busy-reply-threshold", "50")
    other = command_client(redis_url)
    await other.ping()

    async def refused() -> Exception | None:
        """What a write fails with, which is answered before the script is there, and again past the threshold."""
        try:
            await other.set("key", "value", px=1000)
        except RedisUnavailable as error:
            return error
        return None

    busy: Exception | None = None
    async with anyio.create_task_group() as group:
        group.start_soon(failure, admin.execute_command("EVAL", "while true do end", 0))
        busy = await wait_until(refused, what="the script in the way")
        await other.execute_command("SCRIPT", "KILL")
    await other.aclose()

    assert busy is not None
    assert isinstance(busy, RedisUnavailable)
    assert busy.code == "BUSY"
    assert not isinstance(ResponseError("BUSYGROUP Consumer Group name already exists"), RedisUnavailable)


async def refused(url: str) -> str:
    """Why a client cannot use a server."""
    async with command_client(url, connections=1) as client:
        error = await failure(client.ping())
    assert isinstance(error, RedisUnavailable)
    return str(error)


async def test_a_login_or_a_database_that_is_refused_is_an_outage_that_names_its_settings(
    admin: Any, redis_url: str
) -> None:
    await admin.execute_command("ACL", "SETUSER", USER, "on", f">{SECRET}", "+ping")
    assert await refused(redis_url.replace("redis://", f"redis://{USER}:{SECRET}x@")) == (
        "it refuses the login, WRONGPASS: check REDIS_USERNAME and REDIS_PASSWORD, or the user and password in"
        " REDIS_URL"
    )
    assert "the database in REDIS_URL" in await refused(redis_url.rpartition("/")[0] + "/99")
    await admin.execute_command("ACL", "SETUSER", "default", "resetpass", f">{SECRET}")
    try:
        assert "REDIS_PASSWORD" in await refused(redis_url)
    finally:
        await admin.execute_command("ACL", "SETUSER", "default", "nopass")


async def test_a_command_that_the_acl_forbids_is_an_outage_also_in_a_script(admin: Any, redis_url: str) -> None:
    await admin.execute_command("ACL", "SETUSER", USER, "on", f">{SECRET}", "~*", "+evalsha", "+script|load", "+time")
    limited = as_user(redis_url, f"{USER}:{SECRET}")
    request = await Bench(admin, admin).request()
    errors = [
        await failure(limited.set("key", "value")),
        await failure(EngineLedger(limited, Keys(), cipher=CLEAR).enqueue(request)),
    ]
    await limited.aclose()

    for error in errors:
        assert isinstance(error, RedisUnavailable)
        assert str(error).startswith("its ACL does not let this user do it, NOPERM: ")


async def test_a_node_of_a_cluster_wants_a_prefix_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    node = LocalServer(embedded_binary(), tmp_path, "--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    node.start()
    redis: Any = command_client(node.url)
    try:
        await redis.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)

        async def is_up() -> bool:
            return b"cluster_state:ok" in await redis.execute_command("CLUSTER", "INFO")

        await wait_until(is_up)
        bench = Bench(redis, redis)
        error = await failure(bench.engine.enqueue(await bench.request()))
        assert isinstance(error, RedisUnavailable)
        assert "give REDIS_KEY_PREFIX a hash tag" in str(error)
        assert "give REDIS_KEY_PREFIX a hash tag" in caplog.text

        keys = Keys("{callstream}:")
        request = await bench.request()
        channel = keys.response(request.correlation_id)
        request = msgspec.structs.replace(request, response_channel=channel)
        assert isinstance(await EngineLedger(redis, keys, cipher=CLEAR).enqueue(request), replies.Queued)
    finally:
        await redis.aclose()
        node.stop()


async def test_a_wrong_command_is_no_outage(admin: Any) -> None:
    await admin.set(key := new_id(), "text", ex=10)

    assert not isinstance(await failure(admin.xadd(key, {"a": 1})), RedisUnavailable)
    assert not isinstance(
        await failure(admin.execute_command("EVAL", "return redis.call('nonsense')", 0)), RedisUnavailable
    )
    assert not isinstance(ValueError("MISCONF"), RedisUnavailable)
