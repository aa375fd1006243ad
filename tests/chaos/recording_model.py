"""`python -m tests.chaos.recording_model PORT`: the demo model, which tells at `/asked?about=…` what it was asked.

The answer is the list of the requests, oldest first, that contain the text.
"""

import json
import sys

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from examples import serve
from examples.demo_model.app import create_app

TOKEN_SECONDS = 0.005


class Recorder:
    """Keeps the processes of all requests in front of an application."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._processes: list[bytes] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] == "/healthz":
            await self._app(scope, receive, send)
            return
        if scope["path"] == "/asked":
            about = scope["query_string"].partition(b"=")[2]
            found = [json.loads(body) for body in self._processes if about in body]
            await JSONResponse(found)(scope, receive, send)
            return
        body = bytearray()

        async def heard() -> Message:
            message = await receive()
            body.extend(message.get("body", b""))
            if message["type"] == "http.request" and not message.get("more_body"):
                self._processes.append(bytes(body))
            return message

        await self._app(scope, heard, send)


if __name__ == "__main__":
    app = Recorder(create_app(token_delay=TOKEN_SECONDS))
    serve(app, host="127.0.0.1", port=int(sys.argv[1]), path="/v1", label="Recording model")
