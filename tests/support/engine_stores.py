"""The store as one engine has it, on either database."""

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol

import pytest

from dialog_engine.chat.history import Memory, messages_of, newest_said
from dialog_engine.chat.outbox import OutboxRelay, OutboxRow
from dialog_engine.chat.ports import Control, SeenEngine
from dialog_engine.model import AssistantMessage, Done, DoneReason, Message, ToolCall, Turn, Usage
from dialog_engine.storage.approvals import SqlApprovals
from dialog_engine.storage.archive import SqlArchive
from dialog_engine.storage.audit import AuditTrail
from dialog_engine.storage.branches import LEAF
from dialog_engine.storage.calls import SqlCalls
from dialog_engine.storage.conversations import SqlConversations
from dialog_engine.storage.database import Database
from dialog_engine.storage.engines import SqlEngines
from dialog_engine.storage.erasures import SqlErasures
from dialog_engine.storage.large_results import SqlLargeResults
from dialog_engine.storage.open_calls import SqlOpenCalls
from dialog_engine.storage.outbox import SqlOutbox
from dialog_engine.storage.parked import SqlParked
from dialog_engine.storage.postgres import open_postgres
from dialog_engine.storage.questions import SqlQuestions
from dialog_engine.storage.requests import SqlRequests
from dialog_engine.storage.responses import SqlAskedResponses
from dialog_engine.storage.results import SqlResults
from dialog_engine.storage.sessions import SqlSessions
from dialog_engine.storage.sqlite_file import open_sqlite
from dialog_engine.storage.store import EngineDatabase, Store
from dialog_engine.storage.turns import SqlTurns
from dialog_engine.storage.waiting import SqlWaiting
from dialog_engine.tool_calls.values import Question
from plugins_contract.catalog import ApprovalPolicy
from plugins_contract.encryption import CLEAR, Cipher
from plugins_contract.keys import Keys
from plugins_contract.ledger import NEVER_OFFERED
from plugins_contract.messages import ToolCallRequested, new_id
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from tests.support import requests

DIALECTS = ("sqlite", "postgres")
OUTCOME = ToolOutcome(CallState.SUCCEEDED, (TextBlock("42"),))
LEASE_MS = 10_000


class OpenDatabase(Protocol):
    """Opens the database of one test; again and again it is the same one."""

    def __call__(self, pool_size: int = 4) -> AbstractAsyncContextManager[Database]:
        """Open it. SQLite has one writer, whatever the size."""
        ...


def opener(dialect: str, path: Path, request: pytest.FixtureRequest) -> OpenDatabase:
    """Opens the file at `path`, or the database of the test on the PostgreSQL server."""
    if dialect == "sqlite":
        return lambda pool_size=4: open_sqlite(path)
    url: str = request.getfixturevalue("postgres_url")
    return lambda pool_size=4: open_postgres(url, pool_size)


class NotedOffers(OutboxRelay):
    """Notes the rows that are offered, and publishes nothing."""

    def __init__(self) -> None:
        self.rows: list[OutboxRow] = []

    def offers_to(self, requests: Sequence[ToolCallRequested]) -> Sequence[str]:
        return [NEVER_OFFERED] * len(requests)

    def offer(self, rows: Sequence[OutboxRow]) -> None:
        self.rows.extend(rows)


class NotedFrees(Control):
    """Notes the sessions in which a message does not wait any more, and wakes nobody."""

    def __init__(self) -> None:
        self.sessions: list[str] = []

    def stop(self, turn_id: str) -> None:
        pass

    def decision(self) -> None:
        pass

    def free(self, session_id: str) -> None:
        self.sessions.append(session_id)

    def sessions_changed(self) -> None:
        pass

    def who_reads(self, turn_id: str, within: float) -> None:
        pass

    def reads(self, turn_id: str) -> None:
        pass


def store_of(
    database: Database, engine_id: str = "engine", relay: OutboxRelay | None = None, *, stream: bool = False
) -> Store:
    """The store of an engine, by default without encryption and with a relay that publishes nothing."""
    engine = EngineDatabase(database, CLEAR, engine_id, Keys())
    return Store(engine, AuditTrail(b"key", stream=stream), relay or NotedOffers(), NotedFrees())


class EngineStore:
    """All that one engine keeps in a database. `offered` are the outbox rows that were offered to its relay."""

    def __init__(
        self,
        database: Database,
        engine_id: str = "engine",
        *,
        kind: type[Store] = Store,
        cipher: Cipher = CLEAR,
        stream: bool = False,
        facts_with_text: bool = False,
    ) -> None:
        self.database = database
        self.engine_id = engine_id
        relay = NotedOffers()
        self.offered = relay.rows
        control = NotedFrees()
        self.freed = control.sessions
        engine = EngineDatabase(database, cipher, engine_id, Keys())
        self.store = store = kind(engine, AuditTrail(b"key", stream=stream), relay, control)
        self.calls = SqlCalls(store)
        self.turns = SqlTurns(store, facts_with_text=facts_with_text)
        self.approvals = SqlApprovals(store)
        self.questions = SqlQuestions(store)
        self.sessions = SqlSessions(store)
        self.conversations = SqlConversations(store)
        self.responses = SqlAskedResponses(store)
        self.sent = SqlRequests(store)
        self.waiting = SqlWaiting(store)
        self.parked = SqlParked(store)
        self.erasures = SqlErasures(store)
        self.archive = SqlArchive(store, SqlOpenCalls(store))
        self.outbox = SqlOutbox(store)
        self.results = SqlResults(store)
        self.engines = SqlEngines(store)
        self.large = SqlLargeResults(store)

    async def registered(self) -> "EngineStore":
        """The same, when the engine has a lease."""
        await self.engines.register(LEASE_MS)
        return self

    async def change(self, sql: str, *values: object) -> None:
        """Run a statement beside all units of the engine."""
        await self.database.write(lambda tx: tx.execute(sql, *values))

    async def add_round(self, turn: Turn, *calls: ToolCall, asked: Sequence[ToolCall] = ()) -> int:
        """Commit a round of calls; those that are `asked` about wait for an approval and have no request."""
        return await self.calls.add_round(
            turn,
            AssistantMessage("Let me see", (*calls, *asked)),
            [requested(turn, call, mailbox_of(self.engine_id)) for call in calls],
            {},
            {call.correlation_id: question() for call in asked},
        )

    async def end(self, turn: Turn, text: str = "Bye") -> int | None:
        done = Done(turn.turn_id, DoneReason.STOP, Usage(3, 4, estimated=True), 5)
        return (await self.turns.finish(turn, AssistantMessage(text), done, None)).message_id

    async def messages(self, session_id: str) -> list[Message]:
        """The newest messages of a session, oldest first, as a model reads them."""
        leaf = await self.leaf(session_id)
        page = await self.archive.page(session_id, leaf, before=None, limit=100, size=1_000_000)
        return messages_of(page.messages)

    async def leaf(self, session_id: str) -> str:
        """The last turn of the path of a session that is shown."""
        query = f"SELECT {LEAF} AS leaf FROM sessions s WHERE s.session_id = $1"  # noqa: S608
        return (await self.database.read(query, session_id))[0].leaf or ""

    async def said(self, session_id: str, memory: Memory) -> tuple[tuple[Message, ...], int]:
        """What a model is sent of a session."""
        return await newest_said(self.archive, session_id, await self.leaf(session_id), memory)

    async def seen(self, other: "EngineStore") -> SeenEngine:
        [seen] = [each for each in await self.engines.others() if each.engine_id == other.engine_id]
        return seen


mailbox_of = Keys().mailbox
"""The mailbox of an engine."""


def tool_call() -> ToolCall:
    return ToolCall("call_1", new_id(), "demo__add", "{}")


def question(arguments: dict[str, Any] | None = None) -> Question:
    return Question(
        server="demo", title=None, policy=ApprovalPolicy.ALWAYS, arguments=arguments or {}, hash="hash", asked_at=1,
        expires_at=2,
    )  # fmt: skip


def requested(
    turn: Turn, call: ToolCall, mailbox: str = "mailbox", *, arguments: dict[str, Any] | None = None
) -> ToolCallRequested:
    return requests.requested(
        correlation_id=call.correlation_id, tool_call_id=call.tool_call_id, tool_name=call.name, deadline=1,
        session_id=turn.session_id, turn_id=turn.turn_id, subject=turn.subject, arguments=arguments or {},
        mailbox=mailbox,
    )  # fmt: skip
