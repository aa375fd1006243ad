"""What is tried of each server. A cell is what is read in the table, and raises what did not hold."""

import signal
from collections.abc import Callable, Coroutine
from typing import Any

from tests.mcp_servers.product import Json, RefusedError, Tried
from tests.mcp_servers.published import Published
from tests.support.waiting import wait_until

YES = "✓"
Cell = Callable[[Tried, Published], Coroutine[Any, Any, str]]


class NotOfferedError(Exception):
    """The server has nothing of this kind."""


async def connect(tried: Tried, server: Published) -> str:
    """Its catalog reaches the engine."""
    await tried.ready()
    return YES


async def tools(tried: Tried, server: Published) -> str:
    """How many tools it lists."""
    return str(len(tried.catalog["tools"]))


async def call(tried: Tried, server: Published) -> str:
    """A tool's result reaches the user."""
    await _succeeds(tried, *server.call)
    return YES


async def error(tried: Tried, server: Published) -> str:
    """What the tool refuses reaches the user in its words."""
    tool, arguments = server.error
    end, _ = await tried.call(tool, arguments)
    if end["status"] != "failed" or not end["error"]["message"]:
        raise RefusedError(f"{end['status']}: {end.get('error') or end.get('result')}")
    return YES


async def image(tried: Tried, server: Published) -> str:
    """A picture can be loaded from the engine."""
    end = await _succeeds(tried, *_offered(server.image))
    for media in end["result"]["media"]:
        body = await tried.engine.client.get(media["url"])
        if body.is_success and len(body.content) == media["size"]:
            return YES
    raise RefusedError(f"no picture: {end['result']}")


async def structured(tried: Tried, server: Published) -> str:
    """A tool with an `outputSchema` returns what fits it: the worker checks."""
    name, _ = _offered(server.structured)
    found = [each for each in tried.catalog["tools"] if each["tool"].rpartition("/")[2] == name]
    if not found or not found[0].get("outputSchema"):
        raise RefusedError(f"{name} has no outputSchema")
    await _succeeds(tried, *_offered(server.structured))
    return YES


async def progress(tried: Tried, server: Published) -> str:
    """Progress is shown while the tool runs."""
    _, steps = await tried.call(*_offered(server.progress))
    if not any(step.get("status") == "progress" for step in steps):
        raise RefusedError("no progress")
    return YES


async def form(tried: Tried, server: Published) -> str:
    """A form is put to the user, and the answer ends the call."""
    return await _asked(tried, server.form, "form")


async def url(tried: Tried, server: Published) -> str:
    """An address is put to the user."""
    return await _asked(tried, server.url, "url")


async def resource(tried: Tried, server: Published) -> str:
    """The first resource can be read."""
    listed = (await _get(tried, "/v1/resources", server=tried.server))["resources"]
    uri = _offered(next((each["uri"] for each in listed if not each["template"]), None))
    contents = (await _get(tried, "/v1/resources/content", server=tried.server, uri=uri))["contents"]
    if not any("text" in each or "blob" in each for each in contents):
        raise RefusedError(f"nothing in {uri}: {contents}")
    return YES


async def prompt(tried: Tried, server: Published) -> str:
    """The first prompt can be had."""
    listed = (await _get(tried, "/v1/prompts", server=tried.server))["prompts"]
    first = _offered(next(iter(listed), None))
    names = [each["name"] for each in first["arguments"] if each["required"]]
    arguments = {name: server.words.get(name, "text") for name in names}
    got = await _post(tried, "/v1/prompts/get", server=tried.server, name=first["name"], arguments=arguments)
    if not got["messages"]:
        raise RefusedError(f"{first['name']} has no messages")
    return YES


async def completion(tried: Tried, server: Published) -> str:
    """An argument is completed."""
    got = await _post(tried, "/v1/prompts/complete", server=tried.server, **_offered(server.completion))
    if not got["values"]:
        raise RefusedError("no values")
    return YES


async def update(tried: Tried, server: Published) -> str:
    """A tool that comes while it runs is offered."""
    change = _offered(server.update)
    before = {each["tool"] for each in tried.catalog["tools"]}
    await _succeeds(tried, *change)

    async def differs() -> bool:
        await tried.ready()
        return {each["tool"] for each in tried.catalog["tools"]} != before

    await wait_until(differs, 15, what="the changed list")
    return YES


async def cancel(tried: Tried, server: Published) -> str:
    """A Stop ends a call that hangs, at once; the server works afterwards."""

    async def stop(turn_id: str) -> None:
        await _post(tried, f"/v1/turns/{turn_id}/cancel")

    _is_not_late(await _hung(tried, server, stop))
    return await _works(tried, server)


async def hang(tried: Tried, server: Published) -> str:
    """A call to a server that hangs ends with its time; the server works afterwards."""

    async def nothing(turn_id: str) -> None: ...

    if (await _hung(tried, server, nothing))["status"] == "succeeded":
        raise RefusedError("a suspended server has answered")
    return await _works(tried, server)


async def kill(tried: Tried, server: Published) -> str:
    """The call of a server that is killed has its end, which says what is known."""

    async def stab(turn_id: str) -> None:
        tried.signal(signal.SIGKILL)

    _is_not_late(await _hung(tried, server, stab))
    return YES


async def restart(tried: Tried, server: Published) -> str:
    """After its end a server works again: a child is started, another one is connected to."""
    if tried.remote is not None:
        tried.remote.stop()
        tried.remote.start(tried.folder)
    return await _works(tried, server)


async def _works(tried: Tried, server: Published) -> str:
    """It answers again, perhaps not at once: what a browser was told before has to end."""

    async def answers() -> bool:
        end, _ = await tried.call(*server.call)
        return end["status"] == "succeeded"

    await wait_until(answers, 60, every=0.5, what="an answer")
    return YES


async def _succeeds(tried: Tried, tool: str, arguments: Json) -> Json:
    end, _ = await tried.call(tool, arguments)
    _ended_well(tool, end)
    return end


def _ended_well(tool: str, end: Json) -> str:
    if end["status"] != "succeeded":
        raise RefusedError(f"{tool}: {end['status']}: {end.get('error')}")
    return YES


def _offered(found: Any) -> Any:
    if found is None:
        raise NotOfferedError
    return found


def _is_not_late(end: Json) -> None:
    if end["status"] == "succeeded" or end["error"]["code"] == "TIMEOUT":
        raise RefusedError(f"{end['status']}: {end.get('error')}")


async def _asked(tried: Tried, question: tuple[str, Json] | None, kind: str) -> str:
    tool, arguments = _offered(question)
    end, steps = await tried.call(tool, arguments)
    if not any(step["type"] == "question" and step.get("kind") == kind for step in steps):
        raise RefusedError(f"nothing was asked: {end}")
    return _ended_well(tool, end)


async def _hung(tried: Tried, server: Published, running: Callable[[str], Coroutine[Any, Any, None]]) -> Json:
    """The end of a call to suspended processes, which go on afterwards. `running` gets the turn of the call."""

    async def on_step(step: Json, turn_id: str) -> None:
        if step.get("status") == "running":
            await running(turn_id)

    tried.signal(signal.SIGSTOP)
    try:
        end, _ = await tried.call(*server.call, on_step, seconds=30)
    finally:
        tried.signal(signal.SIGCONT)
    return end


async def _get(tried: Tried, path: str, **parameters: str) -> Json:
    return _body(path, await tried.engine.client.get(path, params=parameters))


async def _post(tried: Tried, path: str, **body: Any) -> Json:
    return _body(path, await tried.engine.client.post(path, json=body))


def _body(path: str, answer: Any) -> Json:
    if answer.is_error:
        raise RefusedError(f"{path}: {answer.text}")
    return answer.json() if answer.content else {}


CELLS: dict[str, Cell] = {
    "connect": connect, "tools": tools, "call": call, "error": error, "image": image, "structured": structured,
    "progress": progress, "form": form, "URL": url, "resource": resource, "prompt": prompt, "completion": completion,
    "update": update, "cancel": cancel, "hang": hang, "kill in a call": kill, "restart": restart,
}  # fmt: skip
