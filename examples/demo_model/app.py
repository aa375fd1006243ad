"""The HTTP endpoints of an OpenAI-compatible provider, answered by the script."""

import time
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import cast

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from examples.demo_model.request import MODEL_ID, BadRequestError, conversation_of, parse_request
from examples.demo_model.script import plan
from examples.demo_model.wire import Json, Reply, sse

MODEL: Json = {
    "id": MODEL_ID,
    "object": "model",
    "created": 1_767_225_600,
    "owned_by": "callstream-demo (scripted, not an AI)",
}


def create_app(*, token_delay: float) -> Starlette:
    """The demo model, which waits `token_delay` seconds after each chunk it streams. Any API key is accepted."""

    async def chat_completions(http_request: Request) -> Response:
        try:
            request = parse_request(await http_request.body())
        except BadRequestError as error:
            return _error(error.status, error.message, param=error.param, code=error.code)
        reply = Reply.to(request, plan(conversation_of(request)), created=int(time.time()))
        if not request.stream:
            return JSONResponse(reply.completion())
        include_usage = request.stream_options is not None and request.stream_options.include_usage
        events = _paced(reply, include_usage=include_usage, delay=token_delay)
        return StreamingResponse(events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"})

    routes = [
        Route("/v1/chat/completions", chat_completions, methods=["POST"]),
        Route("/v1/models", _models, methods=["GET"]),
        Route("/healthz", _healthz, methods=["GET"]),
    ]
    return Starlette(routes=routes, exception_handlers={HTTPException: _http_error})


async def _paced(reply: Reply, *, include_usage: bool, delay: float) -> AsyncIterator[str]:
    for chunk in reply.chunks(include_usage=include_usage):
        yield sse(chunk)
        await anyio.sleep(delay)
    yield sse("[DONE]")


async def _models(_: Request) -> Response:
    return JSONResponse({"object": "list", "data": [MODEL]})


async def _healthz(_: Request) -> Response:
    return JSONResponse({"status": "ok"})


def _http_error(request: Request, error: Exception) -> Response:
    status = cast("HTTPException", error).status_code
    return _error(status, f"{HTTPStatus(status).phrase}: {request.method} {request.url.path}")


def _error(status: int, message: str, *, param: str | None = None, code: str | None = None) -> Response:
    error = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": error}, status_code=status)
