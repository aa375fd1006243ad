"""A stand-in for the dialog-engine that speaks the protocol of docs/protocol.md and follows a script.

Everything runs on one event loop in a thread of its own; a test calls the public methods from its own thread. Nothing
happens by the clock: a script goes on when the test opens its gates.
"""

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import AsyncIterator, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Annotated, Any

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, Header, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic import BaseModel, Field

from dialog_engine.http.page import page_router
from tests.e2e.scripts import SUGGESTED, Drop, Json, Say, Script, Wait, done, message

ENDED = {"succeeded", "failed", "timeout", "cancelled", "unknown", "refused"}
PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63606060f80f0001040100"
    "5fe5c34b0000000049454e44ae426082"
)


class Problem(Exception):  # noqa: N818 - the name of the thing in the protocol
    """Becomes a problem document."""

    def __init__(self, status: int, code: str, detail: str, *fields: Json) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.fields = status, code, detail, fields


@dataclass
class Turn:
    """One turn: its log, and who listens."""

    turn_id: str
    session_id: str
    log: list[Say] = field(default_factory=list[Say])
    calls: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    cancelled: asyncio.Event = field(default_factory=asyncio.Event)
    changed: asyncio.Condition = field(default_factory=asyncio.Condition)
    drops: int = 0
    reconnect: bool = False

    @property
    def ended(self) -> bool:
        return bool(self.log) and self.log[-1].event == "done"

    @property
    def reason(self) -> str | None:
        return self.log[-1].data["reason"] if self.ended else None

    @property
    def record(self) -> Json:
        end: Json = self.log[-1].data if self.ended else {}
        errors = [say.data for say in self.log if say.event == "error"]
        return {"turnId": self.turn_id, **end, **({"error": errors[0]} if errors else {})}


@dataclass
class Session:
    """One conversation."""

    session_id: str
    title: str = ""
    created_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    messages: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    running: Turn | None = None


class ScriptedEngine:
    """The state of the stand-in. Methods without an underscore may be called from the test's thread."""

    def __init__(self) -> None:
        self.scripts: dict[str, Script] = dict(SUGGESTED)
        self.api_key: str | None = None
        self.unavailable = False
        self.page_size = 100
        self.tools = 13
        self.forget_logs = False
        self.model = {"id": "scripted", "label": "Scripted", "scripted": True}
        self.models: list[Json] = [{"name": "demo:scripted", "label": "Scripted", "default": True}]
        self.chosen: list[str | None] = []
        """The models that messages asked for."""
        self.tool_modes: list[str] = []
        self.chosen_tool_modes: list[str | None] = []
        """The tool modes that messages asked for."""
        self.reconnects: list[str | None] = []
        self.cancels: list[str] = []
        self.media: bytes = PIXEL
        self.whole = ""
        self.after_stop: dict[str, Say] = {}
        """How calls end that a stop did not cancel, by correlation id."""
        self.sessions: dict[str, Session] = {}
        self.turns: dict[str, Turn] = {}
        self.queued: list[str] = []
        """The sessions of messages that wait."""
        self._gates: dict[str, asyncio.Event] = {}
        self._ids = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self.loop: asyncio.AbstractEventLoop | None = None

    def open_gate(self, gate: str) -> None:
        """Lets every script that waits for `gate`, now or later, go on."""
        assert self.loop is not None
        self.loop.call_soon_threadsafe(lambda: self._gate(gate).set())

    def drop_connections(self) -> None:
        """Closes every open event stream, as a broken network would."""
        assert self.loop is not None
        for turn in self.turns.values():
            asyncio.run_coroutine_threadsafe(_drop(turn), self.loop).result(5)

    def store(self, title: str, *exchanges: tuple[str, str], session_id: str | None = None) -> Session:
        """A finished conversation of questions and answers."""
        session = Session(session_id or f"s{next(self._ids)}", title)
        session.created_at -= timedelta(hours=2 * len(self.sessions) + 1)
        for question, reply in exchanges:
            self._remember(session, None, "user", question)
            self._remember(session, None, "assistant", reply)
        self.sessions[session.session_id] = session
        return session

    # ── What the routes do ──

    def find(self, session_id: str) -> Session:
        if session_id not in self.sessions:
            raise Problem(404, "SESSION_NOT_FOUND", "There is no such conversation.")
        return self.sessions[session_id]

    def new_session(self) -> Session:
        session = Session(f"s{next(self._ids)}")
        self.sessions[session.session_id] = session
        return session

    def begin(self, session: Session, text: str) -> Turn:
        if session.running:
            raise Problem(409, "TURN_RUNNING", "An answer is still being written in this conversation.")
        turn = Turn(f"t{next(self._ids)}", session.session_id)
        self.turns[turn.turn_id] = turn
        session.running = turn
        session.title = session.title or text
        self._remember(session, turn, "user", text)
        task = asyncio.create_task(self._run(session, turn, self.scripts.get(text, [done()])))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return turn

    async def free(self, session: Session, client: Request) -> bool:
        """Wait for the end of the turn that runs. False when the client has gone before."""
        self.queued.append(session.session_id)
        gone = asyncio.Event()

        async def watch() -> None:
            while (await client.receive())["type"] != "http.disconnect":
                pass
            gone.set()

        watching = asyncio.create_task(watch())
        while (turn := session.running) and not gone.is_set():
            ended = asyncio.create_task(_ended(turn))
            await asyncio.wait({ended, watching}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
        watching.cancel()
        self.queued.remove(session.session_id)
        return not gone.is_set()

    def describe(self, session: Session) -> Json:
        return {
            "sessionId": session.session_id,
            "title": session.title,
            "createdAt": session.created_at.isoformat(),
            "updatedAt": session.created_at.isoformat(),
            "runningTurnId": session.running.turn_id if session.running else None,
        }

    def turn_list(self, session: Session) -> list[Json]:
        """The session's turns as `/messages` has them."""
        return [turn.record for turn in self.turns.values() if turn.session_id == session.session_id]

    def messages(self, session: Session) -> list[Json]:
        return [self._with_calls(message) for message in session.messages]

    def _with_calls(self, message: Mapping[str, Any]) -> Json:
        if "calls" not in message:
            return message
        stored = {name: value for name, value in message.items() if name != "calls"}
        turn = self.turns[message["turnId"]]
        return stored | {"toolCalls": [turn.calls[call] for call in message["calls"] if call in turn.calls]}

    def _remember(self, session: Session, turn: Turn | None, role: str, content: str, *calls: str) -> None:
        message: dict[str, Any] = {
            "messageId": next(self._ids),
            "turnId": turn.turn_id if turn else "stored",
            "role": role,
            "content": content,
            "interrupted": False,
            "createdAt": datetime.now(UTC).isoformat(),
        }
        session.messages.append(message | ({"calls": calls} if calls else {}))

    def _gate(self, gate: str) -> asyncio.Event:
        return self._gates.setdefault(gate, asyncio.Event())

    # ── The turn ──

    async def _run(self, session: Session, turn: Turn, script: Script) -> None:
        await self._say(session, turn, _started(turn))
        for step in script:
            if turn.cancelled.is_set():
                break
            match step:
                case Say():
                    await self._say(session, turn, step)
                case Wait(gate):
                    await _first_of(self._gate(gate), turn.cancelled)
                case Drop(reconnect):
                    turn.reconnect = reconnect
                    await _drop(turn)
        if turn.cancelled.is_set() and not turn.ended:
            await self._stop(session, turn)

    async def _stop(self, session: Session, turn: Turn) -> None:
        for call in turn.calls.values():
            if call["status"] not in ENDED:
                error = {"code": "CANCELLED", "message": "Stopped before it was finished."}
                end = call | {"type": "tool", "status": "cancelled", "durationMs": 1200, "error": error}
                await self._say(session, turn, self.after_stop.get(call["correlationId"], Say("control", end)))
        if partial := _open_text(turn.log):
            await self._say(session, turn, message(partial))
            session.messages[-1]["interrupted"] = True
        await self._say(session, turn, done("cancelled"))

    async def _say(self, session: Session, turn: Turn, say: Say) -> None:
        if say.event == "message":
            calls = [call["correlationId"] for call in say.data.get("toolCalls", ())]
            self._remember(session, turn, "assistant", say.data["content"], *calls)
            say = Say("message", {**say.data, "messageId": session.messages[-1]["messageId"]})
        elif say.event == "reset":
            say = _rebuilt(session, say)
        elif say.data.get("type") == "tool":
            call = turn.calls.setdefault(say.data["correlationId"], {})
            call.update({name: value for name, value in say.data.items() if name != "type"})
        elif say.event == "done":
            session.running = None
        async with turn.changed:
            turn.log.append(say)
            turn.changed.notify_all()

    async def stream(self, turn: Turn, after: int) -> AsyncIterator[str]:
        """The log from `after` on, then what comes, until the end or until the connection is dropped."""
        drops, sent = turn.drops, after
        yield ": hello\n\n"
        while True:
            async with turn.changed:
                while len(turn.log) == sent and turn.drops == drops:
                    await turn.changed.wait()
            if turn.drops > drops:
                if turn.reconnect:
                    yield ": reconnect\nretry: 250\n\n"
                return
            while sent < len(turn.log):
                sent += 1
                say = turn.log[sent - 1]
                yield f"id: 1-{sent}\nevent: {say.event}\ndata: {json.dumps(say.data)}\n\n"
            if turn.ended:
                return


def _rebuilt(session: Session, reset: Say) -> Say:
    """The reset with the ids that its messages have in storage."""
    ids = {message["content"]: message["messageId"] for message in session.messages}
    events = [
        each | {"data": each["data"] | {"messageId": ids[each["data"]["content"]]}}
        if each["event"] == "message"
        else each
        for each in reset.data["events"]
    ]
    return Say("reset", {**reset.data, "events": events})


def _started(turn: Turn) -> Say:
    facts = {"type": "turn", "status": "started", "turnId": turn.turn_id, "sessionId": turn.session_id}
    return Say("control", facts)


def _open_text(log: list[Say]) -> str:
    pieces: list[str] = []
    for say in log:
        if say.event in {"message", "reset"}:
            pieces.clear()
        elif say.event == "text":
            pieces.append(say.data["delta"])
    return "".join(pieces)


async def _drop(turn: Turn) -> None:
    async with turn.changed:
        turn.drops += 1
        turn.changed.notify_all()


async def _ended(turn: Turn) -> None:
    async with turn.changed:
        await turn.changed.wait_for(lambda: turn.ended)


async def _first_of(*events: asyncio.Event) -> None:
    waiting = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


class ChatRequest(BaseModel):
    message: Annotated[str, Field(max_length=2000)]
    sessionId: str | None = None  # noqa: N815 - the wire's name
    onBusy: str = "refuse"  # noqa: N815 - likewise
    model: str | None = None
    toolMode: str | None = None  # noqa: N815 - likewise


def scripted_app(engine: ScriptedEngine) -> FastAPI:
    """The protocol over HTTP, as far as the page uses it."""

    async def authorised(authorization: Annotated[str, Header()] = "") -> None:
        if engine.api_key and authorization != f"Bearer {engine.api_key}":
            raise Problem(401, "UNAUTHENTICATED", "An API key is needed.")

    async def problem(_: Request, error: Exception) -> Response:
        assert isinstance(error, Problem)
        return _problem_document(error)

    async def invalid(_: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        fields = [{"field": ".".join(map(str, one["loc"][1:])), "message": one["msg"]} for one in error.errors()]
        return _problem_document(
            Problem(422, "INVALID_REQUEST", "; ".join(field["message"] for field in fields), *fields)
        )

    app = FastAPI()
    app.add_exception_handler(Problem, problem)
    app.add_exception_handler(RequestValidationError, invalid)
    app.include_router(page_router())
    app.include_router(_sessions(engine), prefix="/v1", dependencies=[Depends(authorised)])
    app.include_router(_turns(engine), prefix="/v1", dependencies=[Depends(authorised)])
    return app


def _problem_document(problem: Problem) -> Response:
    document = {
        "type": "about:blank",
        "title": HTTPStatus(problem.status).phrase,
        "status": problem.status,
        "detail": problem.detail,
    }
    document |= {"code": problem.code, "errors": list(problem.fields)}
    return JSONResponse(document, problem.status, media_type="application/problem+json")


def _sessions(engine: ScriptedEngine) -> APIRouter:
    router = APIRouter()

    async def about() -> Json:
        return {
            "name": "callstream",
            "version": "0.1.0",
            "model": engine.model,
            "mcp": {"enabled": True, "tools": engine.tools},
        }

    async def models() -> Json:
        return {"models": engine.models, "toolModes": engine.tool_modes}

    async def sessions(before: str = "9999", limit: int = 50) -> Json:
        newest_first = sorted(engine.sessions.values(), key=lambda session: session.created_at, reverse=True)
        described = [engine.describe(session) for session in newest_first]
        page = [session for session in described if session["updatedAt"] < before]
        return {"sessions": page[:limit], "nextCursor": page[limit - 1]["updatedAt"] if len(page) > limit else None}

    async def create() -> Json:
        return {"sessionId": engine.new_session().session_id}

    async def messages(session_id: str, before: str | None = None) -> Json:
        session = engine.find(session_id)
        older = engine.messages(session)[: None if before is None else int(before)]
        page = older[-engine.page_size :]
        cursor = str(len(older) - len(page)) if len(page) < len(older) else None
        return {
            **engine.describe(session), "messages": page, "turns": engine.turn_list(session), "nextCursor": cursor
        }  # fmt: skip

    async def delete(session_id: str) -> None:
        del engine.sessions[engine.find(session_id).session_id]

    router.add_api_route("/about", about)
    router.add_api_route("/models", models)
    router.add_api_route("/sessions", sessions)
    router.add_api_route("/sessions", create, methods=["POST"], status_code=201)
    router.add_api_route("/sessions/{session_id}/messages", messages)
    router.add_api_route("/sessions/{session_id}", delete, methods=["DELETE"], status_code=202)
    return router


def _turns(engine: ScriptedEngine) -> APIRouter:
    router = APIRouter()

    async def chat(request: ChatRequest, client: Request) -> Response:
        engine.chosen.append(request.model)
        engine.chosen_tool_modes.append(request.toolMode)
        session = engine.find(request.sessionId) if request.sessionId else engine.new_session()
        if request.onBusy == "queue" and not await engine.free(session, client):
            return Response(status_code=499)
        turn = engine.begin(session, request.message)
        ids = {"X-Session-Id": session.session_id, "X-Turn-Id": turn.turn_id}
        return StreamingResponse(engine.stream(turn, 0), media_type="text/event-stream", headers=ids)

    async def begin(session_id: str, request: ChatRequest) -> Json:
        turn = engine.begin(engine.find(session_id), request.message)
        return {"sessionId": session_id, "turnId": turn.turn_id, "eventsUrl": f"/v1/turns/{turn.turn_id}/events"}

    async def events(turn_id: str, last_event_id: Annotated[str | None, Header()] = None) -> Response:
        engine.reconnects.append(last_event_id)
        if engine.unavailable:
            raise Problem(503, "UNAVAILABLE", "Not now.")
        turn = engine.turns[turn_id]
        after = int(last_event_id.split("-")[1]) if last_event_id else 0
        if turn.ended and (engine.forget_logs or after >= len(turn.log)):
            return Response(status_code=204)
        return StreamingResponse(engine.stream(turn, after), media_type="text/event-stream")

    async def cancel(turn_id: str) -> Json:
        engine.cancels.append(turn_id)
        turn = engine.turns[turn_id]
        turn.cancelled.set()
        return {"turnId": turn_id, "status": turn.reason or "running"}

    async def content() -> Response:
        return Response(engine.media, media_type="image/png")

    router.add_api_route("/chat", chat, methods=["POST"])
    router.add_api_route("/sessions/{session_id}/turns", begin, methods=["POST"], status_code=202)
    router.add_api_route("/turns/{turn_id}/events", events)
    router.add_api_route("/turns/{turn_id}/cancel", cancel, methods=["POST"], status_code=202)

    async def whole() -> Response:
        return Response(engine.whole, media_type="text/plain; charset=utf-8", status_code=200 if engine.whole else 503)

    router.add_api_route("/turns/{turn_id}/tool-calls/{correlation_id}/content/{number}", content)
    router.add_api_route("/turns/{turn_id}/tool-calls/{correlation_id}/text", whole)
    return router


@contextmanager
def serving(engine: ScriptedEngine) -> Generator[str]:
    """Runs the engine on a free port of the loopback, in a thread of its own, and gives its base URL."""
    # Without `log_config` it changes nothing of the logging that all tests of a run share.
    config = uvicorn.Config(scripted_app(engine), lifespan="off", ws="none", log_config=None)
    server = uvicorn.Server(config)
    listening = threading.Event()

    async def serve(sock: socket.socket) -> None:
        engine.loop = asyncio.get_running_loop()
        listening.set()
        await server.serve([sock])

    with socket.create_server(("127.0.0.1", 0)) as sock:
        thread = threading.Thread(target=lambda: asyncio.run(serve(sock)), name="scripted engine")
        thread.start()
        listening.wait(10)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = server.force_exit = True
            thread.join(10)
