"""`python -m examples.alert_receiver`: a receiver for Alertmanager, which prints a line for each alert."""

import argparse
import json
from typing import Any, cast

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from examples import serve


def lines(notification: dict[str, Any]) -> list[str]:
    """What is printed of a notification: state, severity and name of each alert, its summary and its link."""
    alerts: list[dict[str, Any]] = notification.get("alerts", [])
    return [
        " ".join(
            (
                str(alert.get("status", "")).upper(),
                str(alert["labels"].get("severity", "")),
                f"{alert['labels'].get('alertname', '')}:",
                str(alert["annotations"].get("summary", "")),
                str(alert["annotations"].get("runbook_url", "")),
            )
        )
        for alert in alerts
    ]


async def notified(request: Request) -> Response:
    """Alertmanager's webhook."""
    for line in lines(cast("dict[str, Any]", json.loads(await request.body()))):
        print(line, flush=True)
    return Response(status_code=204)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m examples.alert_receiver", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8093, help="0 takes a free port (default: %(default)s)")
    options = parser.parse_args()
    app = Starlette(routes=[Route("/{path:path}", notified, methods=["POST"])])
    serve(app, host=options.host, port=options.port, path="/", label="Receiver of alerts")


if __name__ == "__main__":
    main()
