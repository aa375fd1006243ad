"""Resources where worker and engine are processes: what they cost."""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx2

from deploy.local.ports import free_port
from tests.integration.engines import Model
from tests.integration.servers.updating import UpdatingServer
from tests.integration.test_resource_updates import ONE, write
from tests.integration.test_resources import most_memory
from tests.marks import exhaustive, promise
from tests.support.processes import Process, running
from tests.support.waiting import wait_until

ENGINE, WORKER = (Path(sys.executable).with_name(name) for name in ("dialog-engine", "plugins-mcp"))
MOST_MB = 40
"""How much ten thousand resources may cost an engine, or a worker while it lists them."""


@promise(
    "ten thousand resources of a server cost a worker and an engine bounded memory", only_in_test_all="listings of 4 MB"
)
@exhaustive("listings of 4 MB")
async def test_the_memory_of_ten_thousand_resources(redis_url: str, tmp_path: Path, model: Model) -> None:
    few = UpdatingServer({ONE: "1"})
    many = UpdatingServer({f"doc://{'folder/' * 20}{number}": "" for number in range(10_000)})
    config, port = tmp_path / "mcp.json", free_port()
    write(config, few)
    url = f"http://127.0.0.1:{port}"
    of_worker = {"REDIS_URL": redis_url, "MCP_CONFIG": str(config), "HEALTH_PORT": "0"}
    of_model = {"OPENAI_BASE_URL": model.url, "OPENAI_API_KEY": "a key"}
    of_engine = {"PORT": str(port), "OUTBOX_PATH": str(tmp_path / "store"), "REDIS_URL": redis_url, **of_model}
    async with few.serving(), many.serving(), AsyncExitStack() as stack:
        worker = Process([WORKER], env=of_worker)
        stack.callback(worker.close)
        starting = running([ENGINE], env=of_engine, cwd=tmp_path, ready_url=f"{url}/readyz")
        engine = await stack.enter_async_context(starting)
        client = await stack.enter_async_context(httpx2.AsyncClient(base_url=url, timeout=30, trust_env=False))

        async def lists(number: int) -> bool:
            listed = (await client.get("/v1/resources", params={"limit": 1})).json()
            return len(listed["resources"]) + listed["more"] == number

        await wait_until(lambda: lists(1), 60, what="one resource")
        before = [most_memory(each) for each in (worker, engine)]
        write(config, many)
        await wait_until(lambda: lists(10_000), 60, what="ten thousand resources")
        grown = [most_memory(each) - had for each, had in zip((worker, engine), before, strict=True)]
    print(f"worker +{grown[0] / 1e6:.0f} MB, engine +{grown[1] / 1e6:.0f} MB")
    assert max(grown) <= MOST_MB * 1e6
