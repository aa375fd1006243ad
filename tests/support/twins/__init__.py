"""In-process twins of the ports: what the core needs from the world, without Redis, SQLite or a provider.

They keep the promises of the ports, which `tests/contract/ports` holds them to, and can be told to be slow or to fail.
"""

from tests.support.twins.logs import MemoryLog, MemoryLogs
from tests.support.twins.models import SPENT, Line, ScriptedModel, asks, says
from tests.support.twins.stage import Stage, breathe, done_of, is_step, is_text, read_all, steps_of, text_of
from tests.support.twins.stores import MemoryOutbox, MemoryStore, NoOthers, StoredTurn
from tests.support.twins.workshop import Behaviour, Execution, Shelf, Workshop, failed, gives, succeeded, tool

__all__ = [
    "SPENT",
    "Behaviour",
    "Execution",
    "Line",
    "MemoryLog",
    "MemoryLogs",
    "MemoryOutbox",
    "MemoryStore",
    "NoOthers",
    "ScriptedModel",
    "Shelf",
    "Stage",
    "StoredTurn",
    "Workshop",
    "asks",
    "breathe",
    "done_of",
    "failed",
    "gives",
    "is_step",
    "is_text",
    "read_all",
    "says",
    "steps_of",
    "succeeded",
    "text_of",
    "tool",
]
