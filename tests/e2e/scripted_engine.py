"""The real engine behind the page, whose model and tools follow scripts.

Only the model's answers, the catalog and what becomes of calls are scripted: the pipeline, the store, the logs and HTTP
are the engine's own. It runs on an event loop in a thread of its own; a test calls the public methods from its own
thread. Nothing happens by the clock: a script goes on when the test opens its gates.
"""

import asyncio
import json
import sqlite3
from collections import deque
from collections.abc import AsyncGenerator, Generator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import httpx2
import pytest
from anyio.from_thread import BlockingPortal, start_blocking_portal

from deploy.local.ports import free_port
from dialog_engine.calls.executor import CallExecutor
from dialog_engine.errors import LLMError
from dialog_engine.http.services import Services
from dialog_engine.llm.client import ChatClient
from dialog_engine.model import (
    CallAnswered,
    CallUpdate,
    ChatRequest,
    FinishReason,
    LLMEvent,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    Usage,
    UserMessage,
)
from dialog_engine.peers.catalog import CatalogReader
from dialog_engine.sideband import ModelStream
from plugins_contract.catalog import ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, ToolError, ToolOutcome
from tests.e2e.scripts import SUGGESTED, Call, Done, Drop, Fail, Message, Script, Step, Text, Think, Update, Wait
from tests.integration.engines import Engine, running_engine, settings

USAGE = Usage(214, 61)
NO_MODEL = "http://127.0.0.1:9/v1"
Updates = AsyncGenerator[CallUpdate]
STOPPED = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "Stopped before it was finished.")


class ScriptedEngine:
    """The engine and its scripts, by the user's message. Methods without an underscore are for the test's thread."""

    def __init__(self, folder: Path, redis_url: str) -> None:
        self.scripts: dict[str, Script] = dict(SUGGESTED)
        self.has_tools = True
        self.after_stop: dict[str, ToolOutcome] = {}
        """How calls end that a stop does not cancel, by the name of the tool."""
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._folder = folder
        self._redis_url = redis_url
        self._settings: dict[str, Any] = {"model_label": "Scripted", "model_scripted": True, "max_message_chars": 2000}
        self._gates: dict[str, asyncio.Event] = {}
        self._turns: dict[str, deque[Step]] = {}
        """What is left of the script of each turn."""
        self._portal: BlockingPortal
        self._running: AbstractContextManager[Engine]
        self._engine: Engine

    @contextmanager
    def serving(self) -> Generator[None]:
        """It runs for as long as the block."""

        async def opened(_: ChatClient, request: ChatRequest) -> ModelStream:
            return await ModelStream.begun(self._reply(request))

        def tools(_: CatalogReader) -> tuple[ToolEntry, ...]:
            return tuple(self._tools().values())

        def found(_: CatalogReader, name: str) -> ToolEntry | ToolError:
            return self._tools().get(name) or ToolError(ErrorCode.TOOL_NOT_FOUND, "there is no such tool")

        def run(_: CallExecutor, requests: Sequence[ToolCallRequested], *, late: bool = False) -> Updates:
            return self._updates(requests)

        async def cancelled(_: CallExecutor, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
            return {each.correlation_id: self.after_stop.get(each.tool_name, STOPPED) for each in requests}

        with pytest.MonkeyPatch.context() as patched, start_blocking_portal() as self._portal:
            patched.setattr(ChatClient, "open", opened)
            patched.setattr(CatalogReader, "tools", tools)
            patched.setattr(CatalogReader, "find", found)
            patched.setattr(CallExecutor, "run", run)
            patched.setattr(CallExecutor, "cancel", cancelled)
            self._start()
            try:
                yield
            finally:
                self._stop()

    def restart(self, **changes: Any) -> None:
        """Shut it down and start it again, with changed settings. Turns that run go on afterwards."""
        self._settings |= changes
        self._stop()
        self._start()

    def open_gate(self, gate: str) -> None:
        """Let every script that waits for `gate`, now or later, go on."""
        self._portal.call(lambda: self._gate(gate).set())

    def drop_connections(self) -> None:
        """Break every connection, as a broken network would."""
        self._portal.call(self._drop)

    def store(self, title: str, *exchanges: tuple[str, str]) -> str:
        """A finished conversation of questions and answers; returns its id."""
        session: dict[str, str] = {}
        with httpx2.Client(base_url=self.url, trust_env=False) as http:
            for question, reply in exchanges:
                self.scripts[question] = [Message(reply)]
                answer = http.post("/v1/chat", json={"message": question, **session})
                assert answer.status_code == 200, answer.text
                session = {"sessionId": answer.headers["x-session-id"]}
        with closing(sqlite3.connect(self._folder / "engine.sqlite3", timeout=10, isolation_level=None)) as database:
            database.execute("UPDATE sessions SET title = ? WHERE session_id = ?", [title, session["sessionId"]])
        return session["sessionId"]

    def make_older(self, session_id: str, seconds: int) -> None:
        """The messages of a conversation are older by so much."""
        with closing(sqlite3.connect(self._folder / "engine.sqlite3", timeout=10, isolation_level=None)) as database:
            earlier = "UPDATE messages SET created_at = created_at - ? WHERE session_id = ?"
            database.execute(earlier, [seconds * 1000, session_id])

    def _start(self) -> None:
        configured = settings(self._folder, self._redis_url, NO_MODEL, port=self.port, **self._settings)
        self._running = self._portal.wrap_async_context_manager(running_engine(configured, port=self.port))
        self._engine = self._running.__enter__()

    def _stop(self) -> None:
        self._running.__exit__(None, None, None)

    @property
    def _services(self) -> Services:
        return self._engine.server.lifespan.state["services"]

    def _gate(self, gate: str) -> asyncio.Event:
        return self._gates.setdefault(gate, asyncio.Event())

    def _drop(self, *, hint: bool = False) -> None:
        if hint:
            logs: Any = self._services.frames
            logs.release_readers()
            logs._closed = False
            return
        for connection in list(self._engine.server.server_state.connections):
            connection.transport.abort()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]

    def _tools(self) -> dict[str, ToolEntry]:
        calls = (call for script in self.scripts.values() for step in script for call in _calls(step))
        return {call.name: call.entry for call in calls} if self.has_tools else {}

    async def _common(self, step: Step) -> None:
        match step:
            case Wait(gate):
                await self._gate(gate).wait()
            case Drop(hint):
                self._drop(hint=hint)
            case _:
                raise AssertionError(f"{step} out of its order")

    async def _reply(self, request: ChatRequest) -> AsyncGenerator[LLMEvent]:
        """One reply of the model: up to the end of a message, or to the updates of its calls."""
        question = next(each.content for each in reversed(request.messages) if isinstance(each, UserMessage))
        steps = self._turns.setdefault(request.turn.turn_id, deque(self.scripts.get(question, [])))
        said, calls, reason = "", tuple[Call, ...](), FinishReason.STOP
        while steps and not isinstance(steps[0], Update):
            match steps.popleft():
                case Text(delta):
                    said += delta
                    yield TextDelta(delta)
                case Think(delta):
                    yield ReasoningDelta(delta)
                case Fail(words):
                    raise LLMError(words)
                case Done(reason):
                    pass
                case Message(content, calls):
                    if rest := content.removeprefix(said):
                        yield TextDelta(rest)
                    break
                case step:
                    await self._common(step)
        match steps[0] if steps else None:
            case Done(reason):
                steps.popleft()
            case _:
                pass
        if steps and isinstance(steps[0], Update) and not calls:
            begun = takewhile(lambda step: isinstance(step, Update | Wait | Drop), steps)
            calls = tuple({call.name: call for step in begun for call in _calls(step)}.values())
        for number, call in enumerate(calls):
            yield ToolCallEvent(f"call_{number}", call.name, json.dumps(call.arguments))
        yield StreamEnd(FinishReason.TOOL_CALLS if calls else reason, USAGE)

    async def _updates(self, requests: Sequence[ToolCallRequested]) -> Updates:
        """The updates of these calls, until each has its outcome."""
        ids = {each.tool_name: each.correlation_id for each in requests}  # none when all calls wait for approval
        left = set(ids.values())
        while left:
            match self._turns[requests[0].turn_id].popleft():
                case Update(call, update):
                    yield (made := update(ids[call.name]))
                    if isinstance(made, CallAnswered):
                        left.discard(made.correlation_id)
                case step:
                    await self._common(step)


def _calls(step: Step) -> tuple[Call, ...]:
    match step:
        case Update(call):
            return (call,)
        case Message(_, calls):
            return calls
        case _:
            return ()
