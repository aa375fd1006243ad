"""The sessions of a server that keeps state: one for each owner, a subject or a conversation."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from plugins_contract.catalog import Quarantined, ServerCatalog
from plugins_contract.sessions import SessionMode
from plugins_mcp.mcp.calls import Answered, CallResult
from plugins_mcp.mcp.circuit_breaker import ConnectionPolicy
from plugins_mcp.mcp.server import McpServer
from plugins_mcp.mcp.spec import ServerSpec
from plugins_mcp.mcp.transport_options import Stdio
from plugins_mcp.mcp.watched import Updates, Watched, Whose

log = logging.getLogger(__name__)

PLACEHOLDER = "{session}"
"""Stands for the owner's digest in the arguments, the environment and the folder of a child process."""
SPARED_SECONDS = 60.0
"""A session that was used within this time is not ended to make room for another one."""
NOT_ACCEPTED = "not in the listing that was accepted for this server: it differs in this session"


class OwnSession:
    """The session of one owner. Its server reconnects by itself, and the state is lost then."""

    def __init__(self, server: McpServer, subject: str, *, lost: bool) -> None:
        """`subject` is the one whom it counts for. `lost`: an earlier session had state, which is lost."""
        self.server = server
        self.subject = subject
        self._reported = 0 if lost else 1
        """The number of the connection up to which losses of state were reported."""
        self._calls = 0
        self._used_at = time.monotonic()

    @property
    def unused_for(self) -> float:
        """For how many seconds no call has been in progress."""
        return 0.0 if self._calls else time.monotonic() - self._used_at

    async def run(self, call: Callable[[McpServer], Awaitable[CallResult]]) -> CallResult:
        """Make a call in this session. The first answer after a loss of state says so."""
        self._calls += 1
        try:
            result = await call(self.server)
        finally:
            self._calls -= 1
            self._used_at = time.monotonic()
        if isinstance(result, Answered) and self.server.generation > self._reported:
            self._reported = self.server.generation
            return replace(result, state_lost=True)
        return result


@dataclass(frozen=True, slots=True)
class SessionsOfWorker:
    """All sessions of a worker: those of each of its `servers`, by name. It opens at most `most`."""

    most: int
    servers: "dict[str, OwnSessions]" = field(default_factory=dict[str, "OwnSessions"])

    def __len__(self) -> int:
        return sum(map(len, self.servers.values()))


class OwnSessions(dict[str, OwnSession]):
    """The open sessions of one server, by owner. `run` owns them.

    `listed` is the server as everybody sees it: what a session lists is offered to nobody else, and of it only that
    may be called which a trusted server was accepted with.
    """

    def __init__(
        self,
        listed: McpServer,
        run: Callable[[McpServer], Coroutine[Any, Any, None]],
        policy: ConnectionPolicy,
        updates: Updates,
        worker: SessionsOfWorker,
    ) -> None:
        """`run` runs the server of one session. `worker` has all sessions, these among them."""
        super().__init__()
        self._updates = updates
        self._listed = listed
        self._worker = worker
        self._run_one = run
        self._spec = listed.spec
        self._options = listed.spec.options
        # A call that opens a session waits for the server's start, and for those before it.
        self._policy = replace(policy, call_wait=2 * self._options.connect_timeout_ms / 1000)
        self._owners: asyncio.TaskGroup | None = None
        self._stopping = asyncio.Event()

    @property
    def mode(self) -> SessionMode:
        """Who has a session of their own."""
        return self._options.session

    @property
    def free(self) -> int:
        """How many more can be opened."""
        return max(0, min(self._options.max_sessions - len(self), self._worker.most - len(self._worker)))

    async def run(self) -> None:
        """Own the sessions until `stop`, and end those that nobody uses."""
        idle = self._options.session_idle_ms / 1000
        self.clear()
        async with asyncio.TaskGroup() as self._owners:
            while not self._stopping.is_set():
                for owner in [each for each, session in self.items() if session.unused_for > idle]:
                    log.info("MCP server %r: a session was not used for %.0f s and is ended", self._spec.name, idle)
                    self.end(owner)
                try:
                    async with asyncio.timeout(min(idle / 4, 5.0)):
                        await self._stopping.wait()
                except TimeoutError:
                    pass
            for owner in [*self]:
                self.end(owner)

    def stop(self) -> None:
        """Let `run` end all sessions and return. Calls in progress end first."""
        self._stopping.set()

    def make_room(self, subject: str) -> bool:
        """Make room for one more session of a subject, for which the session that was unused for longest may be ended.

        False when too many are in use.
        """
        for sessions, most in self._limits(subject):
            if len(sessions) >= most:
                server, owner = max(sessions, key=lambda each: each[0][each[1]].unused_for)
                if server[owner].unused_for < SPARED_SECONDS:
                    return False
                server.end(owner)
        return True

    def refusal(self, subject: str) -> str:
        """Why no session can be opened for a subject; '' when one can."""
        theirs, server, worker = (most if len(sessions) >= most else 0 for sessions, most in self._limits(subject))
        what, later = f"the MCP server {self._spec.name!r} has too many open sessions", "try again in some minutes"
        if theirs:
            return f"{what} of this user ({theirs}); delete a conversation that uses it, or {later}"
        if server:
            return f"{what} ({server}); {later}"
        return f"its worker has too many open sessions of all MCP servers ({worker}); {later}" if worker else ""

    def open(self, owner: str, subject: str, *, lost: bool, asks: bool = False) -> None:
        """Open a session. Calls wait until it is connected. Call it only while `run` runs.

        `asks`: its owner can be asked; no other session declares to servers of earlier protocols that questions are
        answered.
        """
        if self._owners is None:
            raise RuntimeError("the sessions of this server have no owner yet")

        def changed(_: str) -> None:
            self._review(server)

        watched = Watched(self._spec.name, self._updates, Whose(owner, subject))
        server = McpServer(self._spec_of(owner, asks=asks), changed=changed, policy=self._policy, watched=watched)
        self[owner] = OwnSession(server, subject, lost=lost)
        server.connection.started()
        self._owners.create_task(self._run_one(server), name=f"mcp-server:{self._spec.name}, session {owner[:8]}")

    def end(self, owner: str) -> None:
        """End a session, after its calls."""
        session = self.pop(owner)
        if self._owners is not None:
            name = f"mcp-server:{self._spec.name}, session {owner[:8]} ends"
            self._owners.create_task(_stop_when_idle(session.server), name=name)

    def _limits(self, subject: str) -> Iterable[tuple[Sequence[tuple["OwnSessions", str]], int]]:
        """The sessions that count for each limit, as they are when it is looked at."""
        theirs = [(self, owner) for owner, session in self.items() if session.subject == subject]
        yield theirs, self._options.max_sessions_per_subject
        yield [(self, owner) for owner in self], self._options.max_sessions
        yield [(each, owner) for each in self._worker.servers.values() for owner in each], self._worker.most

    def _spec_of(self, owner: str, *, asks: bool) -> ServerSpec:
        """The server of one owner, whose session is its own."""
        transport = self._spec.transport
        if isinstance(transport, Stdio):
            transport = replace(
                transport,
                args=tuple(each.replace(PLACEHOLDER, owner) for each in transport.args),
                env={name: value.replace(PLACEHOLDER, owner) for name, value in transport.env.items()},
                cwd=transport.cwd and transport.cwd.replace(PLACEHOLDER, owner),
            )
        options = replace(self._options, session=SessionMode.SHARED)
        return replace(self._spec, transport=transport, options=options, asks=asks)

    def _review(self, server: McpServer) -> None:
        """Accept of a trusted server's listing in a session what was accepted for everybody."""
        mine, listed, accepted = server.listed, self._listed.listed, self._listed.catalog
        if self._options.trust and mine is not None and listed is not None and accepted is not None:
            server.review(mine, _accepted(mine, listed, accepted))


def _accepted(mine: ServerCatalog, listed: ServerCatalog, accepted: ServerCatalog) -> ServerCatalog:
    same = {tool.tool for tool in mine.tools if tool in listed.tools}
    other = tuple(Quarantined(tool=tool.tool, reason=NOT_ACCEPTED) for tool in mine.tools if tool.tool not in same)
    tools = tuple(tool for tool in accepted.tools if tool.tool in same)
    return msgspec.structs.replace(mine, tools=tools, quarantined=(*accepted.quarantined, *other))


async def _stop_when_idle(server: McpServer) -> None:
    await server.connection.idle.wait()
    server.stop()
