"""Which store is used, and for how long what is in it."""

from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from callstream_runtime.settings import EncryptionSettings, RedisSettings
from dialog_engine.config.values import DatabaseUrl
from plugins_contract.messages import EVENT_TYPE as TOOL_CALL_REQUESTED


class StoreSettings(EncryptionSettings):
    """Which store is used: the part that the commands for operators need."""

    outbox_path: Path = Field(
        Path(".data/dialog-engine.sqlite3"),
        description="SQLite file of one engine, with sessions, turns and outbox. Not used with DATABASE_URL.",
    )
    database_url: DatabaseUrl | None = Field(
        None,
        description="PostgreSQL 15 or newer, shared by any number of engines: postgresql://user:password@host/db",
    )
    retention_days: int = Field(
        0, ge=0, le=36_500, description="Days for which a session is kept after its last message; 0: without end."
    )
    retention_by_subject: str = Field(
        "",
        description="The same for classes of subjects, the first that matches: pattern:days,pattern:days.",
    )

    prices_file: Path | None = Field(
        None, description="TOML file: the prices of models and tools, for the report of what was used."
    )

    @property
    def retention_rules(self) -> list[tuple[str, int]]:
        """Patterns of subjects, and for how many days the sessions of each are kept. The last one is for everybody."""
        rules = [(pattern, int(days)) for _, pattern, days in self._retention_parts()]
        return [*rules, ("*", self.retention_days)]

    def _retention_parts(self) -> list[tuple[str, str, str]]:
        parts = [each.strip() for each in self.retention_by_subject.split(",") if each.strip()]
        return [(each, pattern, days) for each in parts for pattern, _, days in [each.rpartition(":")]]

    @model_validator(mode="after")
    def _check_retention(self) -> Self:
        for each, pattern, days in self._retention_parts():
            if not pattern or not (days.isascii() and days.isdigit()) or int(days) > 36_500:
                raise ValueError(
                    f"RETENTION_BY_SUBJECT: {each!r} is not pattern:days, such as guest-*:7, with 0 to 36500 days"
                )
        return self


class OperatorSettings(RedisSettings, StoreSettings):
    """The store and Redis: what the commands for operators need that read both."""


class EngineStoreSettings(StoreSettings):
    """The part that the commands for operators do not need."""

    database_pool_size: int = Field(
        8, ge=1, le=100, description="Largest number of connections to PostgreSQL per engine."
    )
    outbox_routes: dict[str, str] = Field(
        default_factory=dict, description="JSON object of event types and streams, added to the built-in routes."
    )
    stateless_ttl: int = Field(
        86_400,
        ge=60,
        description="Seconds for which a conversation is kept after its last message that a client began without naming"
        " it, over the APIs of others.",
    )
    facts_with_text: bool = Field(
        False, description="Whether TurnFinished contains the texts of the turn. They then outlive a deleted session."
    )
    audit_retention_days: int = Field(
        400, ge=0, le=36_500, description="Days for which events of the audit are kept; 0: without end."
    )
    audit_stream: bool = Field(False, description="Publish each event of the audit to the stream events.audit.")

    @model_validator(mode="after")
    def _check_routes(self) -> Self:
        if TOOL_CALL_REQUESTED in self.outbox_routes:
            raise ValueError(f"OUTBOX_ROUTES cannot move {TOOL_CALL_REQUESTED}: workers read events.plugins only")
        return self
