"""Reads of resources, prompts and completions, outside of any turn: a request, and its answer.

A read may be repeated, so nothing of it is stored: when this engine dies, its client asks again.
"""

from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec

from callstream_runtime.clock import Clock
from dialog_engine.calls.executor import CallExecutor
from dialog_engine.calls.read_cache import ReadCache, Reader
from dialog_engine.model import CallAnswered
from plugins_contract.choice import ToolChoice
from plugins_contract.encryption import Cipher, seal_request
from plugins_contract.errors import ErrorCode
from plugins_contract.keys import Keys
from plugins_contract.ledger import EngineLedger
from plugins_contract.ledger.replies import Overloaded
from plugins_contract.messages import READ_VERSION, ExecutionClass, ToolCallRequested, new_id
from plugins_contract.outcomes import CallState, TextBlock, ToolOutcome
from plugins_contract.reads import RESOURCE, ReadKind, ResourceRead

TIMEOUT_MS = 20_000
"""How long a read may take. Its client waits for it."""


class Reads:
    """The reads of one engine. Each is an entry of the stream, and its answer comes by the mailbox, as of a call."""

    def __init__(
        self,
        ledger: EngineLedger,
        executor: CallExecutor,
        clock: Clock,
        keys: Keys,
        mailbox: str,
        cipher: Cipher,
        cache: ReadCache,
        keeps_state: Callable[[str], bool],
    ) -> None:
        """`keeps_state`: of a server, whose resources then depend on the session, and are not kept in `cache`."""
        self._cache = cache
        self._keeps_state = keeps_state
        self._ledger = ledger
        self._executor = executor
        self._clock = clock
        self._keys = keys
        self._mailbox = mailbox
        self._cipher = cipher

    async def read(
        self,
        kind: ReadKind,
        server: str,
        name: str,
        arguments: dict[str, Any],
        *,
        subject: str,
        session_id: str = "",
        roles: Sequence[str] = (),
        choice: ToolChoice | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> ToolOutcome:
        """Read `name`, as `reads` in the contract names it, for a sender, in a conversation or in none. Whether they
        may is checked before, and again by the worker, unless it is a resource that is kept.

        Raises:
            RedisUnavailable: it cannot be asked for now.
        """
        sender = subject, session_id, tuple(roles)
        if kind is not ReadKind.RESOURCE or self._keeps_state(server):
            return await self._asked(kind, server, name, arguments, sender, choice, timeout_ms)
        uri, reader = name.removeprefix(RESOURCE), Reader(subject, tuple(roles))
        if kept := self._cache.get(server, uri, reader):
            return kept
        mark = self._cache.mark(server)
        outcome = await self._asked(kind, server, name, arguments, sender, choice, timeout_ms)
        first = outcome.content[0] if outcome.error is None and outcome.content else None
        if isinstance(first, TextBlock):
            with suppress(msgspec.DecodeError):  # the caller finds out
                read = msgspec.json.decode(first.text, type=ResourceRead)
                self._cache.put(server, uri, reader, read, outcome, mark)
        return outcome

    async def _asked(
        self,
        kind: ReadKind,
        server: str,
        name: str,
        arguments: dict[str, Any],
        sender: tuple[str, str, tuple[str, ...]],
        choice: ToolChoice | None,
        timeout_ms: int,
    ) -> ToolOutcome:
        """The answer of a worker."""
        subject, session_id, roles = sender
        correlation_id = new_id()
        request = ToolCallRequested(
            event_version=READ_VERSION,
            correlation_id=correlation_id,
            # Without one, a server that keeps state for conversations has a session for the reads of each subject.
            session_id=session_id or f"reads:{subject}",
            turn_id="",
            turn=0,
            tool_call_id="read",
            tool_name=f"read_{kind}",
            server=server,
            tool=name,
            arguments=arguments,
            response_channel=self._keys.response(correlation_id),
            mailbox=self._mailbox,
            deadline=self._clock.now_ms() + timeout_ms,
            execution_class=ExecutionClass.REPEATABLE,
            subject=subject,
            roles=roles,
            approved=None,
            choice=choice or msgspec.UNSET,
            kind=kind,
        )
        request = seal_request(request, self._cipher)
        if isinstance(await self._ledger.enqueue(request), Overloaded):
            return ToolOutcome.failure(CallState.FAILED, ErrorCode.OVERLOADED, "too many calls wait: try again later")
        async with aclosing(self._executor.run([request], late=True)) as updates:
            async for update in updates:
                if isinstance(update, CallAnswered):
                    return update.outcome
        raise AssertionError("the executor answers each request")
