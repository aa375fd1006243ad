"""An MCP server over stdio that, once somebody subscribes to its resource, sends updates of it as fast as it can."""

import json
import os
import sys
import threading
from typing import Any

URI = "flood://all"
UPDATE = {"jsonrpc": "2.0", "method": "notifications/resources/updated", "params": {"uri": URI}}
ANSWERS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"resources": {"subscribe": True}},
        "serverInfo": {"name": "flooding", "version": "1"},
    },
    "resources/list": {"resources": [{"uri": URI, "name": "all"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": URI, "text": "all"}]},
    "resources/subscribe": {},
    "ping": {},
}
writing = threading.Lock()


def send(message: dict[str, Any], times: int = 1) -> None:
    line = json.dumps(message).encode() + b"\n"
    with writing:
        os.write(1, line * times)


def flood() -> None:
    while True:
        send(UPDATE, 100)


for received in sys.stdin:
    request = json.loads(received)
    if "id" not in request:
        continue
    if (answer := ANSWERS.get(request["method"])) is None:
        send({"jsonrpc": "2.0", "id": request["id"], "error": {"code": -32601, "message": "Method not found"}})
        continue
    send({"jsonrpc": "2.0", "id": request["id"], "result": answer})
    if request["method"] == "resources/subscribe":
        threading.Thread(target=flood, daemon=True).start()
