"""Resources and prompts of servers, by the API: through the stream and a worker, for whoever may read them."""

import base64
import json
import sqlite3
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest

from dialog_engine.identity.api_keys import add_key
from tests.integration.engines import Engine, Model, Start
from tests.marks import promise
from tests.support.forked import Forked, forked_server
from tests.support.processes import Process
from tests.support.waiting import wait_until
from tests.support.working import working

MOST_MB = 128
"""Twice the longest answer that is read, and what reading it takes."""
RULES = """
[[allow]]
subjects = ["ann"]
tools = ["notes/*"]
[[deny]]
tools = ["notes/resource:notes://secret/*"]
[[allow]]
subjects = ["bob"]
tools = ["notes/resource:notes://a/*"]
"""


@dataclass(frozen=True, slots=True)
class Place:
    """An engine and a worker with one file of rights, and the headers of two senders."""

    engine: Engine
    ann: dict[str, str]
    bob: dict[str, str]
    worker: Process | None = None

    async def get(self, path: str, who: dict[str, str], **query: str) -> httpx2.Response:
        return await self.engine.client.get(path, headers=who, params=query)

    async def read(self, who: dict[str, str], uri: str) -> tuple[int, dict[str, Any]]:
        answer = await self.get("/v1/resources/content", who, server="notes", uri=uri)
        return answer.status_code, answer.json()

    async def post(self, path: str, who: dict[str, str], **body: Any) -> tuple[int, dict[str, Any]]:
        answer = await self.engine.client.post(path, headers=who, json={"server": "notes", **body})
        return answer.status_code, answer.json()


@asynccontextmanager
async def serving(
    start: Start,
    redis_url: str,
    folder: Path,
    number: int = 3,
    *,
    process: bool = False,
    engine_checks: bool = True,
    servers: tuple[str, ...] = ("notes",),
) -> AsyncGenerator[Place]:
    """A worker that has the server with so many more resources, under these names, in a process of its own or not, and
    an engine, which has the file of rights or not."""
    config, rights = folder / "mcp.json", folder / "rights.toml"
    server = forked_server("tests.integration.servers.reading", str(number))
    config.write_text(json.dumps({"mcpServers": dict.fromkeys(servers, server)}))
    rights.write_text(RULES)
    keys = folder / "keys.json"
    ann, bob = ({"authorization": f"Bearer {add_key(keys, name, ['user'], None)[1]}"} for name in ("ann", "bob"))
    async with AsyncExitStack() as stack:
        worker = None
        if process:
            env = {"REDIS_URL": redis_url, "MCP_CONFIG": str(config), "RIGHTS_FILE": str(rights), "HEALTH_PORT": "0"}
            worker = Process(Forked("tests.support.quick_worker"), env=env)
            stack.callback(worker.close)
        else:
            await stack.enter_async_context(working(redis_url, config, rights_file=rights))
        checks = {"rights_file": rights} if engine_checks else {}
        engine = await stack.enter_async_context(start(api_keys_file=keys, **checks))
        place = Place(engine, ann, bob, worker)

        async def listed() -> bool:
            return bool((await place.get("/v1/resources", ann, server="notes")).json()["resources"])

        await wait_until(listed, 30, what="the resources")
        yield place


@promise("resources and prompts are listed, read and completed by API, through the stream and a worker")
async def test_resources_and_prompts_are_read_by_api(start: Start, redis_url: str, tmp_path: Path) -> None:
    async with serving(start, redis_url, tmp_path) as place:
        ann = place.ann
        listed = (await place.get("/v1/resources", ann, query="notes://", limit="2")).json()
        assert (len(listed["resources"]), listed["more"], listed["leftOut"]) == (2, 7, 0)
        found = (await place.get("/v1/resources", ann, query="one")).json()["resources"]
        assert [(each["uri"], each["title"], each["mimeType"]) for each in found] == [
            ("notes://a/one", "One", "text/plain")
        ]
        [template] = (await place.get("/v1/resources", ann, query="people")).json()["resources"]
        assert (template["uri"], template["template"]) == ("notes://people/{name}", True)

        status, read = await place.read(ann, "notes://a/one")
        assert (status, read["contents"]) == (200, [{"uri": "notes://a/one", "mimeType": "text/plain", "text": "ONE"}])
        assert {"ttlMs", "cacheScope"} < read.keys()
        assert (await place.read(ann, "notes://people/ada"))[1]["contents"][0]["text"] == "about ada"
        [picture] = (await place.read(ann, "notes://picture"))[1]["contents"]
        assert (picture["mimeType"], base64.b64decode(picture["blob"])) == ("image/png", b"\x89PNG")

        [prompt] = (await place.get("/v1/prompts", ann)).json()["prompts"]
        assert (prompt["title"], prompt["arguments"][0]["required"]) == ("Sum up", True)
        status, made = await place.post("/v1/prompts/get", ann, name="summary", arguments={"text": "all"})
        assert (status, made["messages"][0]["content"]["text"]) == (200, "Sum up: all")
        for ref in ({"prompt": "summary"}, {"resource": "notes://people/{name}"}):
            status, values = await place.post("/v1/prompts/complete", ann, name="name", value="ad", **ref)
            assert (status, values["values"], values["total"]) == (200, ["ada", "adam"], 3)


@promise("what is not there, too large, or no address is answered with its code and is never a hang")
async def test_what_cannot_be_read_is_said_with_its_code(start: Start, redis_url: str, tmp_path: Path) -> None:
    async with serving(start, redis_url, tmp_path) as place:
        ann = place.ann
        status, body = await place.read(ann, "notes://nowhere")
        assert (status, body["code"]) == (404, "RESOURCE_NOT_FOUND")
        status, body = await place.post("/v1/prompts/get", ann, name="other")
        assert (status, body["code"]) == (404, "PROMPT_NOT_FOUND")
        status, body = await place.post("/v1/prompts/get", ann, name="summary")
        assert status in (422, 502), body
        for uri in ("notes://a/../secret/key", "notes://a/%2e%2E/secret/key", "no address", "notes://x\\y"):
            assert (await place.read(ann, uri))[0] == 422, uri
        [part] = (await place.read(ann, "notes://large"))[1]["contents"]
        assert part["leftOut"] + len(part["text"]) == 2_000_000
        status, body = await place.read(ann, "notes://huge")
        assert (status, body["code"]) == (502, "NETWORK_ERROR"), body

        async def reads_again() -> bool:
            return (await place.read(ann, "notes://a/one"))[0] == 200

        await wait_until(reads_again, 30, what="the server after it")


@promise("a resource or prompt that a sender has no right to is neither listed nor found nor read")
async def test_what_a_sender_has_no_right_to_is_not_there_for_them(
    start: Start, redis_url: str, tmp_path: Path
) -> None:
    async with serving(start, redis_url, tmp_path) as place:
        for who, most in ((place.ann, 9), (place.bob, 1)):
            listed = (await place.get("/v1/resources", who, limit="1000")).json()["resources"]
            assert len(listed) == most
            assert "secret" not in json.dumps(listed)
            assert (await place.read(who, "notes://secret/key"))[1]["code"] == "RESOURCE_NOT_FOUND"
            assert (await place.read(who, "notes://a/one"))[0] == 200
        assert (await place.get("/v1/prompts", place.bob)).json()["prompts"] == []
        refused = await place.post("/v1/prompts/get", place.bob, name="summary", arguments={"text": "x"})
        assert refused[1]["code"] == "PROMPT_NOT_FOUND"
        ref = {"resource": "notes://people/{name}", "name": "name"}
        assert (await place.post("/v1/prompts/complete", place.bob, **ref))[0] == 404
        shown = json.dumps((await place.get("/v1/tools", place.bob)).json())
        assert "notes://a/one" in shown
        assert "secret" not in shown
    names = [
        ("ann", "resource:notes://secret/key"),
        ("bob", "resource:notes://secret/key"),
        ("bob", "prompt:summary"),
        ("bob", "resource:notes://people/{name}"),
    ]
    assert refused_reads(tmp_path) == names


def refused_reads(folder: Path) -> list[tuple[str, str]]:
    """What the audit says of them: who, and what of the server."""
    with closing(sqlite3.connect(folder / "engine.sqlite3")) as store:
        rows = store.execute("SELECT subject, tool FROM audit WHERE action = 'read.refused' AND server = 'notes'")
        return rows.fetchall()


@promise("a resource or prompt that a sender has no right to is neither listed nor found nor read")
async def test_what_the_worker_alone_refuses_is_not_there_either(start: Start, redis_url: str, tmp_path: Path) -> None:
    async with serving(start, redis_url, tmp_path, engine_checks=False) as place:
        for who, status in ((place.ann, 200), (place.bob, 200)):
            assert (await place.read(who, "notes://a/one"))[0] == status
        status, body = await place.read(place.bob, "notes://secret/key")
        assert (status, body["code"]) == (404, "RESOURCE_NOT_FOUND")
        status, body = await place.post("/v1/prompts/get", place.bob, name="summary", arguments={"text": "x"})
        assert (status, body["code"]) == (404, "PROMPT_NOT_FOUND")
    assert refused_reads(tmp_path) == [("bob", "resource:notes://secret/key"), ("bob", "prompt:summary")]


@promise("a resource or prompt that a sender has no right to is neither listed nor found nor read")
@pytest.mark.parametrize("engine_checks", [True, False])
async def test_a_link_in_a_result_gives_no_right_to_what_it_names(
    start: Start, redis_url: str, tmp_path: Path, model: Model, engine_checks: bool
) -> None:
    links = {"notes://secret/key": "notes", "NOTES://secret/%6Bey": "notes", "notes://people/x": "other"}
    both = ("notes", "other")
    async with serving(start, redis_url, tmp_path, engine_checks=engine_checks, servers=both) as place:
        model.will_call_with("notes__links", {"uris": [*links, "notes://a/one"]})
        for uri, server in (links | {"notes://a/one": "notes"}).items():
            model.will_call_with("read_resource", {"server": server, "uri": uri})
        model.will_say("Read.")
        await place.engine.events("POST", "/v1/chat", headers=place.ann, json={"message": "Read them"})
    named, *refused, read = [each["content"] for each in model.asked[-1]["messages"] if each["role"] == "tool"]
    assert all(uri in named for uri in links)
    assert ["has no such resource" in each for each in refused] == [True] * 3
    assert "ONE" in read
    assert refused_reads(tmp_path) == [("ann", f"resource:{uri}") for uri, server in links.items() if server == "notes"]


@promise("a model lists and reads the resources of servers in pages")
async def test_a_model_reads_on_where_a_page_ends(start: Start, redis_url: str, tmp_path: Path, model: Model) -> None:
    large = {"server": "notes", "uri": "notes://large"}
    async with serving(start, redis_url, tmp_path, number=60) as place:
        for tool, arguments in (
            ("list_resources", {"query": "many"}),
            ("list_resources", {"query": "many", "offset": 50}),
            ("read_resource", large),
            ("read_resource", large | {"offset": 524_200}),
        ):
            model.will_call_with(tool, arguments)
        model.will_say("Read.")
        await place.engine.events("POST", "/v1/chat", headers=place.ann, json={"message": "Read them"})
    first, rest, page, end = [
        json.loads(each["content"]) for each in model.asked[-1]["messages"] if each["role"] == "tool"
    ]
    assert (len(first["resources"]), first["more"], first["nextOffset"]) == (50, 10, 50)
    assert [each["uri"] for each in rest["resources"]] == [f"notes://many/{n}" for n in range(50, 60)]
    assert page["text"] == "x" * page["nextOffset"]
    assert page["left"] + page["nextOffset"] == 524_200 + len(end["text"])
    assert end["text"].startswith("x" * 88 + "\n[… 1,475,712 bytes left out")


@promise("a resource of 100 MB is refused with its code, in bounded memory of the worker")
async def test_an_enormous_resource_does_not_fill_the_memory_of_the_worker(
    start: Start, redis_url: str, tmp_path: Path
) -> None:
    async with serving(start, redis_url, tmp_path, process=True) as place:
        assert place.worker
        assert (await place.read(place.ann, "notes://a/one"))[0] == 200
        before = most_memory(place.worker)
        status, body = await place.read(place.ann, "notes://enormous")
        assert (status, body["code"]) == (502, "NETWORK_ERROR"), body
        grown = (most_memory(place.worker) - before) / 1e6
        print(f"+{grown:.0f} MB")
        assert grown <= MOST_MB

        async def reads_again() -> bool:
            return (await place.read(place.ann, "notes://a/one"))[0] == 200

        await wait_until(reads_again, 30, what="the server after it")


def most_memory(process: Process) -> int:
    """The most memory that it had so far, in bytes."""
    text = Path(f"/proc/{process.pid}/status").read_text()
    return 1024 * int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmHWM")))
