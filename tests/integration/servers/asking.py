"""A real MCP server of 2026-07-28 that asks people, well and badly. It notes each round that it runs in a file.

Arguments: `stdio`, or a port for Streamable HTTP. `KEY` seals its states (a new one at each start without it;
`clear`: they are readable), and `TRACE` names the file. While there is a file `HOLD`, a round with an answer waits.
With `TIMES` each line of the file ends with the time, in seconds.
"""

import asyncio
import os
import sys
import time
from pathlib import Path
from typing import Any

import anyio
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.tools import Tool
from mcp.server.request_state import RequestStateSecurity
from mcp.types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    SamplingMessage,
    TextContent,
)
from starlette.requests import Request
from starlette.responses import Response


class Clear:
    """Seals nothing: a state is readable for all that have it."""

    def seal(self, payload: bytes) -> str:
        return payload.decode()

    def unseal(self, token: str) -> bytes:
        return token.encode()


def security_by(key: str) -> RequestStateSecurity:
    if key == "clear":
        return RequestStateSecurity(codec=Clear())
    return RequestStateSecurity(keys=[key]) if key else RequestStateSecurity.ephemeral()


server = MCPServer("asking", request_state_security=security_by(os.environ.get("KEY", "")))

WHEN = {
    "type": "object",
    "properties": {
        "day": {"type": "string", "format": "date", "title": "Day"},
        "note": {"type": "string"},
        "seats": {"type": "integer", "minimum": 1, "maximum": 4, "default": 2},
        "class": {"type": "string", "oneOf": [{"const": "f", "title": "First"}, {"const": "s", "title": "Second"}]},
    },
    "required": ["day"],
}


def form(message: str, schema: dict[str, Any]) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def url(address: str) -> ElicitRequest:
    return ElicitRequest(params=ElicitRequestURLParams(message="Look here", url=address, elicitation_id="1"))


def asks(state: str, **requests: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(input_requests=requests, request_state=state)


def note(what: str) -> None:
    if path := os.environ.get("TRACE"):
        with Path(path).open("a") as trace:
            trace.write(f"{what} {time.time()}\n" if "TIMES" in os.environ else f"{what}\n")


def answered(ctx: Context, name: str) -> ElicitResult | None:
    answer = (ctx.input_responses or {}).get(name)
    return answer if isinstance(answer, ElicitResult) else None


@server.tool()
async def book(city: str, ctx: Context) -> str | InputRequiredResult:
    """Book a trip: asks once."""
    answer = answered(ctx, "when")
    note(f"book {ctx.request_state} {answer.action if answer else ''}".rstrip())
    if answer is None:
        return asks(f"canary-state to {city}", when=form(f"When to {city}?", WHEN))
    if city == "Nowhere":
        await anyio.sleep_forever()
    while (hold := os.environ.get("HOLD")) and Path(hold).exists():  # noqa: ASYNC110, ASYNC240 -- a file
        await asyncio.sleep(0.05)
    return f"{answer.action} {city} {answer.content} {ctx.request_state}"


@server.tool()
async def twice(ctx: Context) -> str | InputRequiredResult:
    """Asks two questions at once, then one more."""
    note(f"twice {ctx.request_state}")
    if ctx.request_state is None:
        return asks("one", when=form("When?", WHEN), where=url("https://example.com/where"))
    if ctx.request_state == "one":
        first, second = answered(ctx, "when"), answered(ctx, "where")
        actions = f"{first.action if first else None} {second.action if second else None}"
        return asks(f"two {actions}", sure=form("Sure?", {"type": "object", "properties": {"ok": {"type": "boolean"}}}))
    return ctx.request_state


@server.tool()
async def endless(ctx: Context) -> InputRequiredResult:
    """Asks at each round."""
    note("endless")
    return asks("again", more=form("More?", {"type": "object", "properties": {}}))


def _unfit(name: str, **requests: InputRequest) -> Tool:
    async def ask(ctx: Context) -> InputRequiredResult:
        note(name)
        return asks("never", **requests)

    return Tool.from_function(ask, name=name, description=f"Asks what nobody is asked: {name}")


def _field(**schema: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"field": schema}}


UNFIT = {
    "nested": {"a": form("Nested", _field(type="object", properties={}))},
    "javascript": {"a": url("javascript:alert(1)")},
    "private": {"a": url("https://169.254.169.254/latest")},
    "secret": {"a": form("Log in", {"type": "object", "properties": {"API key": {"type": "string"}}})},
    "too_many": {f"q{n}": form("Well?", _field(type="string")) for n in range(11)},
    "sampling": {
        "a": CreateMessageRequest(
            params=CreateMessageRequestParams(
                messages=[SamplingMessage(role="user", content=TextContent(type="text", text="Think"))], max_tokens=9
            )
        )
    },
}
for _name, _requests in UNFIT.items():
    _tool = _unfit(_name, **_requests)
    server.add_tool(_tool.fn, name=_name, description=_tool.description)


async def healthy(_: Request) -> Response:
    return Response()


if __name__ == "__main__":
    if sys.argv[1:] == ["stdio"] or not sys.argv[1:]:
        server.run("stdio")
    else:
        server.custom_route("/healthz", methods=["GET"])(healthy)
        server.run("streamable-http", port=int(sys.argv[1]))
