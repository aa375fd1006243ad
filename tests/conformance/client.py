"""What the conformance suite runs as its client: a worker with its server, an engine, and a model that calls its tools.

    python -m tests.conformance.client http://localhost:PORT/mcp

What the server offers is called as a user's turns would call it: each tool in a turn of its own, with the arguments of
the suite's context, or with such as its schema asks for. Questions are answered with their defaults.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

from tests.mcp_servers.product import Json, product, sample


async def run(url: str, context: Json) -> None:
    """Call everything."""
    async with product({"url": url}, "suite", None, Path()) as tried:
        await tried.ready()
        schemas: Json = {each["name"].partition("__")[2]: each["inputSchema"] for each in tried.catalog["tools"]}
        calls = [(each["name"], each["arguments"]) for each in context.get("toolCalls", ())]
        if "json_schema_echo" in schemas:
            calls = [("json_schema_echo", {"schema": schemas["json_schema_2020_12_tool"]})]
        for tool, arguments in calls or [(tool, sample(schema)) for tool, schema in schemas.items()]:
            end, _ = await tried.call(tool, arguments)
            print(tool, end["status"], json.dumps(end.get("error")), file=sys.stderr)


if __name__ == "__main__":
    asyncio.run(asyncio.wait_for(run(sys.argv[-1], json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")), 60))
