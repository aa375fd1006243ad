"""`python -m examples.demo_model`: serves the scripted demo model over HTTP."""

import argparse

from examples import serve
from examples.demo_model.app import create_app


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.demo_model", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8091, help="0 takes a free port (default: %(default)s)")
    parser.add_argument(
        "--token-delay-ms", type=float, default=15, help="pause after each streamed piece (default: %(default)s)"
    )
    options = parser.parse_args()
    if options.token_delay_ms < 0:
        parser.error("--token-delay-ms must not be negative")

    app = create_app(token_delay=options.token_delay_ms / 1000)
    serve(app, host=options.host, port=options.port, path="/v1", label="Demo model (scripted, not an AI)")


if __name__ == "__main__":
    main()
