"""`python -m examples.demo_server`: serves the demo MCP server over Streamable HTTP or stdio."""

import argparse
import os
from pathlib import Path

from examples import serve
from examples.demo_server.effects import EffectLog
from examples.demo_server.server import build_server

DEFAULT_EFFECT_LOG = ".data/demo-effects.log"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_server", description=__doc__)
    parser.add_argument("--transport", choices=("stdio", "streamable-http"), default="streamable-http")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8092, help="0 takes a free port (default: %(default)s)")
    options = parser.parse_args()

    server = build_server(EffectLog(Path(os.environ.get("DEMO_EFFECT_LOG") or DEFAULT_EFFECT_LOG)))
    if options.transport == "stdio":
        server.run("stdio")
    else:
        app = server.streamable_http_app(host=options.host)
        serve(app, host=options.host, port=options.port, path="/mcp", label="Demo MCP server")


if __name__ == "__main__":
    main()
