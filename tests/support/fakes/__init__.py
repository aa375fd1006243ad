"""In-process fakes of the ports: what the core needs from the world, without Redis, SQLite or a provider.

They keep the promises of the ports, which `tests/contract/ports` holds them to, and can be made slow or made to fail.
"""

from tests.support.fakes.engine import FakeEngine, breathe, done_of, is_step, is_text, read_all, steps_of, text_of
from tests.support.fakes.logs import MemoryLog, MemoryLogs
from tests.support.fakes.models import SPENT, Line, MemoryBand, ScriptedModel, asks, opened, says
from tests.support.fakes.stores import MemoryDatabase, MemoryStore
from tests.support.fakes.worker import (
    Behaviour,
    Execution,
    FakeCatalog,
    FakeWorker,
    WatchedWorker,
    failed,
    gives,
    succeeded,
    tool,
)

__all__ = [
    "SPENT",
    "Behaviour",
    "Execution",
    "FakeCatalog",
    "FakeEngine",
    "FakeWorker",
    "Line",
    "MemoryBand",
    "MemoryDatabase",
    "MemoryLog",
    "MemoryLogs",
    "MemoryStore",
    "ScriptedModel",
    "WatchedWorker",
    "asks",
    "breathe",
    "done_of",
    "failed",
    "gives",
    "is_step",
    "is_text",
    "opened",
    "read_all",
    "says",
    "steps_of",
    "succeeded",
    "text_of",
    "tool",
]
