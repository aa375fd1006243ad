"""The tools, resources and prompts of the demo server, with correct annotations."""

from mcp.server.mcpserver import MCPServer
from mcp.types import ToolAnnotations
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from examples.demo_server import tools
from examples.demo_server.effect_tools import EffectTools
from examples.demo_server.effects import EffectLog

INSTRUCTIONS = "Demo tools. Nothing outside the demo is read or changed, and the weather is invented."


def _hints(*, read_only: bool = False, destructive: bool = False, idempotent: bool = False) -> ToolAnnotations:
    return ToolAnnotations(
        read_only_hint=read_only, destructive_hint=destructive, idempotent_hint=idempotent, open_world_hint=False
    )


READS = _hints(read_only=True, idempotent=True)
ADDS = _hints()
# Not idempotent: a second call would also delete the notes that were added in between.
DESTROYS = _hints(destructive=True)


def build_server(log: EffectLog) -> MCPServer:
    """The demo server over this effect log, for any transport; over HTTP it also answers `GET /healthz`."""
    server = MCPServer(
        "callstream-demo", title="Callstream demo", version="1", instructions=INSTRUCTIONS, log_level="WARNING"
    )
    effects = EffectTools(log)

    server.add_tool(tools.echo, title="Echo", annotations=READS)
    server.add_tool(tools.calculate, title="Calculate", annotations=READS)
    server.add_tool(tools.add, title="Add two numbers", annotations=READS)
    server.add_tool(tools.weather, title="Weather (made up)", annotations=READS)
    server.add_tool(tools.draw, title="Draw a picture", annotations=READS, structured_output=False)
    server.add_tool(tools.fail, title="Fail on purpose", annotations=READS, structured_output=False)
    server.add_tool(tools.large_result, title="Large result", annotations=READS, structured_output=False)
    # The job's lines in the log are for observation; the job itself changes nothing and may run again.
    server.add_tool(effects.slow_job, title="Slow job", annotations=READS, structured_output=False)
    server.add_tool(effects.increment_counter, title="Increment a counter", annotations=ADDS)
    server.add_tool(effects.add_note, title="Add a note", annotations=ADDS, structured_output=False)
    server.add_tool(effects.delete_everything, title="Delete all demo notes", annotations=DESTROYS)

    server.resource("demo://notes", title="Notes", mime_type="text/markdown")(effects.notes)
    server.prompt(title="Compare the time in two cities")(compare_times)
    server.custom_route("/healthz", methods=["GET"])(healthz)
    return server


def compare_times(one: str = "Tokyo", other: str = "Paris") -> str:
    """Ask for the time in two cities at once."""
    return f"What time is it in {one} and in {other}, and how many hours apart are they?"


async def healthz(_: Request) -> Response:
    return JSONResponse({"status": "ok"})
