"""MCP servers that keep state: for whom they keep it, and the name under which Redis knows which worker has it.

Such a server has one session per subject or per conversation, in one worker: its holder. `rpc.plugins.sessions:<owner>`
has a field for each server, which names the holder under a lease and a fence (`ledger/sessions.lua`). It decides only
where a call goes: a worker takes the owner from the signed request.
"""

import hashlib
from enum import StrEnum
from typing import Protocol

import msgspec


class SessionMode(StrEnum):
    """Which calls of a server share its state."""

    SHARED = "shared"
    """All of them."""
    SUBJECT = "subject"
    """Those of one subject; without a subject those of one conversation."""
    CONVERSATION = "conversation"
    """Those of one session of the chat."""


class Caller(Protocol):
    """For whom a call is made: a request."""

    @property
    def subject(self) -> str:
        """The subject, '' where the producer names none."""
        ...

    @property
    def session_id(self) -> str:
        """The conversation."""
        ...


def owner_of(mode: SessionMode, caller: Caller) -> str:
    """Whose the session is in which a call runs: a digest."""
    if mode is SessionMode.SUBJECT and caller.subject:
        return owner(mode, caller.subject)
    return owner(SessionMode.CONVERSATION, caller.session_id)


def owner(mode: SessionMode, name: str) -> str:
    """The digest of a subject or a conversation."""
    return hashlib.sha256(msgspec.json.encode([mode, name])).hexdigest()[:32]


def owners_of(caller: Caller) -> set[str]:
    """Whose sessions a call can run in, whatever the server keeps state for."""
    return {owner_of(mode, caller) for mode in (SessionMode.SUBJECT, SessionMode.CONVERSATION)}
