"""Rights by role, from the key of a request to the request that workers get, also after a restart of the engine."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dialog_engine.identity.api_keys import add_key
from plugins_contract.catalog import ApprovalPolicy
from tests.integration.engines import Engine, Model, publish, running_engine, settings
from tests.integration.test_approvals import requested
from tests.marks import promise
from tests.support.fakes.worker import tool
from tests.support.waiting import wait_until

READ = tool("files__read", {"type": "object"})
DELETE = tool("files__delete", {"type": "object"}, approval=ApprovalPolicy.ALWAYS)
RULES = '[[allow]]\ntools = ["files/read"]\n[[allow]]\nroles = ["staff"]\ntools = ["files/*"]\n'


@dataclass(frozen=True, slots=True)
class Place:
    """Where an engine is started, and the headers of its senders."""

    folder: Path
    redis_url: str
    model: Model
    user: dict[str, str]
    staff: dict[str, str]

    @asynccontextmanager
    async def engine(self) -> AsyncGenerator[Engine]:
        configured = settings(
            self.folder,
            self.redis_url,
            self.model.url,
            api_keys_file=self.folder / "keys.json",
            rights_file=self.folder / "rights.toml",
        )
        async with running_engine(configured) as engine:

            async def offered() -> bool:
                return len(await tools(engine, self.staff)) == 2

            await wait_until(offered, what="the tools")
            yield engine


@pytest.fixture
def place(tmp_path: Path, redis_url: str, model: Model) -> Place:
    publish(redis_url, READ, DELETE)
    (tmp_path / "rights.toml").write_text(RULES)
    user, staff = (
        {"authorization": f"Bearer {add_key(tmp_path / 'keys.json', name, roles, None)[1]}"}
        for name, roles in (("ann", ["user"]), ("bob", ["user", "staff"]))
    )
    return Place(tmp_path, redis_url, model, user, staff)


async def tools(engine: Engine, headers: dict[str, str]) -> list[str]:
    answer: dict[str, Any] = (await engine.client.get("/v1/tools", headers=headers)).json()
    assert answer["exposure"]["tools"] == sum(len(server["tools"]) for server in answer["servers"])
    return [each["name"] for server in answer["servers"] for each in server["tools"]]


async def asked(engine: Engine, turn_id: str, headers: dict[str, str]) -> dict[str, Any]:
    """The question that the turn puts."""
    async with engine.stream("GET", f"/v1/turns/{turn_id}/events", headers=headers) as stream:
        async for event in stream:
            if event.data.get("type") == "approval":
                return event.data
    raise AssertionError("it was not asked")


@promise("a tool that a sender may not use is neither offered nor requested nor run")
async def test_a_request_carries_the_roles_of_its_turn_also_after_a_restart(place: Place) -> None:
    place.model.will_call(DELETE.name)
    async with place.engine() as engine:
        session = (await engine.client.post("/v1/sessions", headers=place.staff)).json()["sessionId"]
        path = f"/v1/sessions/{session}/turns"
        turn = (await engine.client.post(path, headers=place.staff, json={"message": "Delete"})).json()["turnId"]
        question = await asked(engine, turn, place.staff)
    place.model.will_call(READ.name)
    async with place.engine() as engine:
        decision = {"decision": "approve", "hash": question["hash"]}
        approvals = f"/v1/turns/{turn}/approvals/{question['toolCallId']}"
        rules = place.folder / "rights.toml"
        rules.write_text('[[allow]]\ntools = ["files/read"]\n')

        async def withdrawn() -> bool:
            return await tools(engine, place.staff) == ["files__read"]

        await wait_until(withdrawn, what="the new rules")
        refused = await engine.client.post(approvals, headers=place.staff, json=decision)
        assert (refused.status_code, refused.json()["code"]) == (409, "TOOL_CHANGED")
        assert requested(place.redis_url) == []
        rules.write_text(RULES)

        async def allowed() -> bool:
            return len(await tools(engine, place.staff)) == 2

        await wait_until(allowed, what="the old rules")
        taken = await engine.client.post(approvals, headers=place.staff, json=decision)
        assert taken.status_code == 200
        await wait_until(lambda: requested(place.redis_url), what="the request")
        [event] = requested(place.redis_url)
        assert (event["subject"], event["roles"], event["tool"]) == ("bob", ["user", "staff"], "delete")
        await engine.client.post(f"/v1/turns/{turn}/cancel", headers=place.staff)
