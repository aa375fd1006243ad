"""Tools, and what runs them, without a worker."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dialog_engine.model import CallAnswered, CallProgressed, CallQueued, CallRunning, CallUpdate, ToolCall, Turn
from dialog_engine.tool_calls.ports import ServerView, ToolCalls, ToolDirectory, ToolSource
from plugins_contract.catalog import ServerCatalog, ServerState, ToolEntry
from plugins_contract.errors import ErrorCode
from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallState, TextBlock, ToolError, ToolOutcome
from tests.support.requests import requested


def tool(name: str, schema: dict[str, Any] | None = None, **fields: Any) -> ToolEntry:
    """A tool of the server that its name begins with."""
    server, _, own = name.partition("__")
    return ToolEntry(name=name, server=server, tool=own, input_schema=schema or {"type": "object"}, **fields)


class FakeCatalog(ToolSource):
    def __init__(self, *tools: ToolEntry) -> None:
        self._tools = {entry.name: entry for entry in tools}

    def put(self, entry: ToolEntry) -> None:
        """Have this tool too, or in the place of the one that has its name."""
        self._tools[entry.name] = entry

    def tools(self) -> tuple[ToolEntry, ...]:
        return tuple(self._tools.values())

    def find(self, name: str) -> ToolEntry | ToolError:
        return self._tools.get(name) or ToolError(ErrorCode.TOOL_NOT_FOUND, f"there is no tool {name!r}")


class FakeDirectory(FakeCatalog, ToolDirectory):
    """The servers of these tools, of which one worker reports. `listed` is what else their catalogs say."""

    def __init__(self, *tools: ToolEntry, **listed: Any) -> None:
        super().__init__(*tools)
        self._listed = listed

    @property
    def servers(self) -> tuple[ServerView, ...]:
        return tuple(self._view(name) for name in dict.fromkeys(each.server for each in self.tools()))

    def _view(self, server: str) -> ServerView:
        tools = tuple(each for each in self.tools() if each.server == server)
        return ServerView(ServerCatalog(server=server, tools=tools, **self._listed), ServerState.READY, None, 1)

    @property
    def workers(self) -> int:
        return 1


@dataclass(frozen=True, slots=True)
class Execution:
    arguments: dict[str, Any]
    progress: Callable[[float, float | None, str | None], None]


Behaviour = Callable[[Execution], Awaitable[ToolOutcome]]


def succeeded(text: str) -> ToolOutcome:
    return ToolOutcome(CallState.SUCCEEDED, (TextBlock(text),), duration_ms=1, attempts=1)


def failed(message: str) -> ToolOutcome:
    return ToolOutcome.failure(CallState.FAILED, ErrorCode.TOOL_EXECUTION_FAILED, message, attempts=1)


def gives(outcome: ToolOutcome, when: asyncio.Event | None = None) -> Behaviour:
    """A tool with this outcome, at once or when the event is set."""

    async def behave(_: Execution) -> ToolOutcome:
        if when is not None:
            await when.wait()
        return outcome

    return behave


@dataclass(slots=True)
class _Job:
    request: ToolCallRequested
    task: asyncio.Task[None] | None = None
    outcome: ToolOutcome | None = None
    tell: Callable[[CallUpdate], None] | None = None


class FakeWorker(ToolCalls):
    """ToolCalls whose worker is here: it outlives the engines of a test, as Redis and the workers do.

    `executed` lists the correlation ids of all executions. Until it is `staffed` nothing begins; `deaf` workers, and
    tools of that name, do not answer a cancellation.
    """

    def __init__(self, behaviours: Mapping[str, Behaviour] | None = None) -> None:
        self._behaviours = behaviours or {}
        self._jobs: dict[str, _Job] = {}
        self.executed: list[str] = []
        self.staffed = True
        self.deaf = False

    def request(
        self, turn: Turn, call: ToolCall, tool: ToolEntry, arguments: dict[str, Any], approved_by: str = ""
    ) -> ToolCallRequested:
        return requested(
            correlation_id=call.correlation_id, tool_call_id=call.tool_call_id, tool_name=call.tool_name,
            session_id=turn.session_id, turn_id=turn.turn_id, turn=turn.epoch, subject=turn.subject, roles=turn.roles,
            traceparent=turn.traceparent, server=tool.server, tool=tool.tool, execution_class=tool.execution_class,
            arguments=arguments, deadline=_now_ms() + (tool.timeout_ms or 60_000),
        )  # fmt: skip

    async def run(self, requests: Sequence[ToolCallRequested], *, late: bool = False) -> AsyncGenerator[CallUpdate]:
        inbox: asyncio.Queue[CallUpdate] = asyncio.Queue()
        waiting = {request.correlation_id: request for request in requests}
        try:
            for request in requests:
                self._take(request, inbox.put_nowait)
            while waiting:
                update = await self._next(inbox, waiting)
                if isinstance(update, CallAnswered):
                    del waiting[update.correlation_id]
                yield update
        finally:
            for request in requests:
                self._jobs[request.correlation_id].tell = None

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        return {request.correlation_id: await self._stop(request) for request in requests}

    async def staff(self, behaviours: Mapping[str, Behaviour]) -> None:
        """Now there is a worker, and this is what its tools do."""
        self._behaviours, self.staffed = behaviours, True
        for job in self._jobs.values():
            self._begin(job)

    @property
    def listened_to(self) -> list[str]:
        """The correlation ids of the calls that somebody waits for."""
        return [call_id for call_id, job in self._jobs.items() if job.tell is not None]

    async def close(self) -> None:
        """Let nothing go on behind the test's back."""
        for job in self._jobs.values():
            await self._halt(job)

    def _take(self, request: ToolCallRequested, tell: Callable[[CallUpdate], None]) -> None:
        job = self._jobs.setdefault(request.correlation_id, _Job(request))
        job.tell = tell
        if job.outcome is not None:
            tell(CallAnswered(request.correlation_id, job.outcome))
            return
        tell(CallQueued(request.correlation_id, 0))
        if self.staffed:
            self._begin(job)

    def _begin(self, job: _Job) -> None:
        if job.task is None and job.outcome is None:
            self.executed.append(job.request.correlation_id)
            job.task = asyncio.create_task(self._execute(job), name=f"tool {job.request.tool_name}")

    async def _next(self, inbox: "asyncio.Queue[CallUpdate]", waiting: Mapping[str, ToolCallRequested]) -> CallUpdate:
        first = min(waiting.values(), key=lambda request: request.deadline)
        try:
            async with asyncio.timeout(max(0.0, (first.deadline - _now_ms()) / 1000)):
                return await inbox.get()
        except TimeoutError:
            job = self._jobs[first.correlation_id]
            state = CallState.EXPIRED if job.task is None else CallState.UNKNOWN
            job.outcome = job.outcome or ToolOutcome.failure(state, ErrorCode.TIMEOUT, "its time is up")
            return CallAnswered(first.correlation_id, job.outcome)

    async def _execute(self, job: _Job) -> None:
        call_id = job.request.correlation_id

        def progress(done: float, total: float | None, message: str | None) -> None:
            _tell(job, CallProgressed(call_id, done, total, message))

        _tell(job, CallRunning(call_id, 1))
        behaviour = self._behaviours.get(job.request.tool_name, gives(succeeded("done")))
        outcome = await behaviour(Execution(job.request.arguments, progress))
        job.outcome = job.outcome or outcome
        _tell(job, CallAnswered(call_id, job.outcome))

    async def _stop(self, request: ToolCallRequested) -> ToolOutcome:
        job = self._jobs.setdefault(request.correlation_id, _Job(request))
        if job.outcome is None:
            if job.task is None:
                job.outcome = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "stopped before it began")
            elif self.deaf or request.tool == "deaf":
                job.outcome = ToolOutcome.failure(CallState.UNKNOWN, ErrorCode.OUTCOME_UNKNOWN, "no worker answers")
            else:
                await self._halt(job)
                job.outcome = ToolOutcome.failure(CallState.CANCELLED, ErrorCode.CANCELLED, "stopped while it ran")
        return job.outcome

    async def _halt(self, job: _Job) -> None:
        if job.task is not None:
            job.task.cancel()
            await asyncio.wait([job.task])


def _tell(job: _Job, update: CallUpdate) -> None:
    if job.tell is not None:
        job.tell(update)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


class WatchedWorker(FakeWorker):
    """Remembers which calls were still awaited when they were cancelled."""

    heard: tuple[str, ...] | None = None

    async def cancel(self, requests: Sequence[ToolCallRequested]) -> dict[str, ToolOutcome]:
        self.heard = tuple(self.listened_to) if self.heard is None else self.heard
        return await super().cancel(requests)
