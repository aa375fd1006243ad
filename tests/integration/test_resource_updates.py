"""Updates of resources: from a server through a worker to the turns that have read them, and to readers of events."""

import json
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from callstream_runtime.connections import command_client
from deploy.local.ports import free_port
from dialog_engine.identity.api_keys import add_key
from plugins_contract.keys import Keys
from plugins_contract.updates import decode_update
from tests.integration.engines import Engine, Event, Model, Start, Stream
from tests.integration.servers.scripted import LEGACY, MODERN
from tests.integration.servers.updating import UpdatingServer
from tests.marks import exhaustive, promise
from tests.support.forked import Forked
from tests.support.processes import ROOT, Process, running
from tests.support.waiting import wait_until
from tests.support.working import working

FLOODING = ROOT / "tests" / "integration" / "servers" / "flooding.py"
ONE, TWO, SECRET = "doc://one", "doc://two", "doc://secret"
RULES = """
[[allow]]
subjects = ["ann"]
tools = ["docs/*"]
[[allow]]
subjects = ["bob"]
tools = ["docs/resource:doc://one"]
"""
READ = {"server": "docs", "uri": ONE}


@dataclass(frozen=True, slots=True)
class Place:
    """An engine with rights for two senders."""

    engine: Engine
    config: Path
    rights: Path
    ann: dict[str, str]
    bob: dict[str, str]

    async def read(self, who: dict[str, str], uri: str) -> int:
        answer = await self.engine.client.get(
            "/v1/resources/content", headers=who, params={"server": "docs", "uri": uri}
        )
        return answer.status_code

    async def lists(self, server: str = "docs") -> bool:
        query = {"server": server}
        return bool((await self.engine.client.get("/v1/resources", headers=self.ann, params=query)).json()["resources"])


@asynccontextmanager
async def place_of(start: Start, folder: Path, server: UpdatingServer, **options: Any) -> AsyncGenerator[Place]:
    config, rights, keys = folder / "mcp.json", folder / "rights.toml", folder / "keys.json"
    write(config, server, **options)
    rights.write_text(RULES)
    ann, bob = ({"authorization": f"Bearer {add_key(keys, name, ['user'], None)[1]}"} for name in ("ann", "bob"))
    async with start(api_keys_file=keys, rights_file=rights) as engine:
        yield Place(engine, config, rights, ann, bob)


def write(config: Path, server: UpdatingServer, **options: Any) -> None:
    new = config.with_suffix(".new")
    new.write_text(json.dumps({"mcpServers": {"docs": {"type": "http", "url": server.url, "callstream": options}}}))
    new.replace(config)


async def updated(stream: Stream, name: str) -> Event:
    """The next event of a resource."""
    while True:
        event = await stream.until(name)
        if name != "control" or event.data["type"] == "resource":
            return event


@promise("an update of a resource is shown by the turn that has read it, and by /v1/events to those who may read it")
@pytest.mark.parametrize("era", [MODERN, LEGACY])
async def test_an_update_reaches_the_turn_that_has_read_the_resource(
    start: Start, redis_url: str, tmp_path: Path, model: Model, era: str
) -> None:
    protocol = "legacy" if era == LEGACY else "auto"
    async with (
        UpdatingServer({ONE: "1", TWO: "2", SECRET: "3"}).serving() as server,
        place_of(start, tmp_path, server, protocol=protocol) as place,
        working(redis_url, place.config, rights_file=place.rights),
    ):
        await wait_until(place.lists, 30, what="the resources")
        model.will_call_with("read_resource", READ)
        model.will_say("I have read it.")
        server.on_read = model.held.clear
        async with (
            place.engine.stream("GET", "/v1/events", headers=place.ann) as anns,
            place.engine.stream("GET", "/v1/events", headers=place.bob) as bobs,
            place.engine.stream("POST", "/v1/chat", headers=place.ann, json={"message": "Read"}) as turn,
        ):
            while (await turn.until("control")).data["status"] != "succeeded":
                pass
            assert await place.read(place.ann, TWO) == 200
            await wait_until(lambda: {ONE, TWO} <= server.watched, what="both subscriptions")
            await server.update(TWO, ONE, SECRET)
            shown = await updated(turn, "control")
            assert shown.data == {"type": "resource", "status": "updated", **READ}
            for reader, uris in ((anns, [TWO, ONE]), (bobs, [ONE])):
                assert [(await updated(reader, "resource")).data["uri"] for _ in uris] == uris
            model.held.set()
            rest = [event.data async for event in turn]
            assert not any(data.get("type") == "resource" for data in rest)
        assert server.asked == {ONE: server.asked[ONE], TWO: server.asked[TWO]}


@promise("subscriptions stand again after a server or a worker was lost, or the file was changed")
@pytest.mark.parametrize("era", [MODERN, pytest.param(LEGACY, marks=exhaustive("the test above has both"))])
async def test_subscriptions_are_renewed(start: Start, redis_url: str, tmp_path: Path, era: str) -> None:
    protocol = "legacy" if era == LEGACY else "auto"
    server = UpdatingServer({ONE: "1"})

    async def shown(reader: Stream) -> None:
        await wait_until(lambda: ONE in server.watched, 30, what="the subscription")
        await server.update(ONE)
        assert (await updated(reader, "resource")).data == READ

    async with place_of(start, tmp_path, server, protocol=protocol) as place:
        async with server.serving(), working(redis_url, place.config, rights_file=place.rights):
            await wait_until(place.lists, 30, what="the resources")
            assert await place.read(place.ann, ONE) == 200
            async with place.engine.stream("GET", "/v1/events", headers=place.ann) as reader:
                await shown(reader)
                write(place.config, server, protocol=protocol, timeoutMs=7_000)
                asked = server.asked[ONE]
                await wait_until(lambda: server.asked[ONE] > asked, 30, what="the changed file")
                await shown(reader)
        async with working(redis_url, place.config, rights_file=place.rights) as stopping:
            async with server.serving(), place.engine.stream("GET", "/v1/events", headers=place.ann) as reader:
                await shown(reader)
            async with server.serving(), place.engine.stream("GET", "/v1/events", headers=place.ann) as reader:
                await shown(reader)
            stopping.set()


@promise("a server that sends updates without end disturbs neither calls nor other servers")
async def test_a_flood_of_updates_is_at_most_one_announcement_in_a_second(
    start: Start, redis_url: str, tmp_path: Path
) -> None:
    quiet = UpdatingServer({ONE: "1"})
    flooding = {"command": sys.executable, "args": [str(FLOODING)]}
    async with (
        quiet.serving(),
        place_of(start, tmp_path, quiet) as place,
        command_client(redis_url).pubsub() as control,
    ):
        servers = json.loads(place.config.read_text())["mcpServers"] | {"flood": flooding}
        place.config.write_text(json.dumps({"mcpServers": servers}))
        place.rights.write_text('[[allow]]\ntools = ["*/*"]\n')
        await control.subscribe(Keys().control)
        async with working(redis_url, place.config, rights_file=place.rights):
            for each in ("docs", "flood"):
                await wait_until(lambda each=each: place.lists(each), 30, what=f"the resources of {each}")
            query, began_at = {"server": "flood", "uri": "flood://all"}, time.monotonic()
            read = place.engine.client.get("/v1/resources/content", headers=place.ann, params=query)
            assert (await read).status_code == 200
            came = 0
            while came < 2:
                assert await place.read(place.ann, ONE) == 200, "the other server answers meanwhile"
                while message := await control.get_message(timeout=0):
                    if message["type"] == "message" and (update := decode_update(message["data"])):
                        assert (update.server, update.uris) == ("flood", ("flood://all",))
                        came += 1
            assert came <= time.monotonic() - began_at + 1


# --- What an engine keeps ---


@promise("a resource is kept as long as its server says, privately for each subject, and never where it says nothing")
@pytest.mark.parametrize(
    "scope", ["private", pytest.param("public", marks=exhaustive("test_read_cache.py has the same without parts"))]
)
async def test_a_read_is_answered_from_what_is_kept_until_it_is_updated(
    start: Start, redis_url: str, tmp_path: Path, scope: str
) -> None:
    server = UpdatingServer({ONE: "1", SECRET: "3"}, ttl_ms=600_000, scope=scope)
    async with (
        server.serving(),
        place_of(start, tmp_path, server) as place,
        working(redis_url, place.config, rights_file=place.rights),
    ):
        await wait_until(place.lists, 30, what="the resources")
        for who in (place.ann, place.ann, place.bob, place.bob):
            assert await place.read(who, ONE) == 200
        assert server.reads[ONE] == (1 if scope == "public" else 2)
        for who, status in ((place.ann, 200), (place.bob, 404), (place.ann, 200)):
            assert await place.read(who, SECRET) == status
        assert server.reads[SECRET] == 1
        async with place.engine.stream("GET", "/v1/events", headers=place.ann) as reader:
            await server.update(ONE)
            await updated(reader, "resource")
        before = server.reads[ONE]
        assert await place.read(place.ann, ONE) == 200
        server.ttl_ms = 0
        await server.update(ONE)
        for _ in range(2):
            await wait_until(lambda: reads_once_more(place, server), what="a read by the server")
        assert server.reads[ONE] > before + 2


async def reads_once_more(place: Place, server: UpdatingServer) -> bool:
    before = server.reads[ONE]
    return await place.read(place.ann, ONE) == 200 and server.reads[ONE] > before


@promise("ten thousand resources are listed by API in pages, and by list_resources")
async def test_ten_thousand_resources_are_paged_through(start: Start, redis_url: str, tmp_path: Path) -> None:
    server = UpdatingServer({f"doc://{number}": "" for number in range(10_100)})
    async with (
        server.serving(),
        place_of(start, tmp_path, server) as place,
        working(redis_url, place.config, rights_file=place.rights),
    ):
        await wait_until(place.lists, 60, what="the resources")
        found: list[str] = []
        after: int | None = 0
        while after is not None:
            params = {"limit": 1_000, "after": after}
            page = (await place.engine.client.get("/v1/resources", headers=place.ann, params=params)).json()
            found += [each["uri"] for each in page["resources"]]
            assert (page["leftOut"], page["more"]) == (100, 10_000 - len(found))
            after = page["nextCursor"]
        assert found == [*server.texts][:10_000]


# --- While something dies ---


@promise("a read of a model is read again when its engine or worker is killed, and never hangs")
async def test_what_reads_for_a_model_is_killed(redis_url: str, tmp_path: Path, model: Model) -> None:
    server = UpdatingServer({ONE: "the text"})
    config = tmp_path / "mcp.json"
    write(config, server)
    port = free_port()
    of_worker = {"REDIS_URL": redis_url, "MCP_CONFIG": str(config), "HEALTH_PORT": "0"}
    of_engine = {
        "PORT": str(port),
        "OUTBOX_PATH": str(tmp_path / "engine.sqlite3"),
        "REDIS_URL": redis_url,
        "OPENAI_BASE_URL": model.url,
        "OPENAI_API_KEY": "a key",
    }
    url = f"http://127.0.0.1:{port}"

    async def start_engine(stack: AsyncExitStack) -> Process:
        starting = running(Forked("tests.support.quick_engine"), env=of_engine, cwd=tmp_path, ready_url=f"{url}/readyz")
        return await stack.enter_async_context(starting)

    def start_worker(stack: AsyncExitStack) -> Process:
        worker = Process(Forked("tests.support.quick_worker"), env=of_worker)
        stack.callback(worker.close)
        return worker

    async with server.serving(), AsyncExitStack() as stack:
        worker = start_worker(stack)
        engine = await start_engine(stack)
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False))

        async def lists() -> bool:
            return bool((await client.get("/v1/resources")).json()["resources"])

        async def read_so_often(times: int) -> None:
            await wait_until(lambda: server.reads[ONE] >= times, 60, what=f"read number {times}")

        await wait_until(lists, 60, what="the resources")
        for _ in range(2):  # the second time by the engine that goes on
            model.will_call_with("read_resource", READ)
        model.will_say("I have read it.")
        server.answers.clear()
        session = (await client.post("/v1/sessions")).json()["sessionId"]
        begun = (await client.post(f"/v1/sessions/{session}/turns", json={"message": "Read"})).json()
        await read_so_often(1)
        engine.kill()
        await start_engine(stack)
        await read_so_often(2)
        worker.kill()
        start_worker(stack)
        await read_so_often(3)
        server.answers.set()

        async def ended() -> dict[str, Any] | None:
            turn = (await client.get(f"/v1/turns/{begun['turnId']}")).json()
            return turn if turn["status"] != "running" else None

        turn = await wait_until(ended, 60, what="the end of the turn")
        assert turn
        assert turn["status"] == "done"
        said = (await client.get(f"/v1/sessions/{session}/messages")).json()["messages"]
        assert [call["status"] for message in said for call in message["toolCalls"]] == ["succeeded"]
        assert said[-1]["content"] == "I have read it."
