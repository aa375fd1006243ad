"""What the HTTP layer is given by the wiring."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import Depends, Request

from dialog_engine.chat.approvals import Approvals
from dialog_engine.chat.archive import Archive, Sessions
from dialog_engine.chat.frames import TurnFrames
from dialog_engine.chat.turns import RunningTurns
from dialog_engine.http.choices import Choices
from dialog_engine.http.sse import Streams
from dialog_engine.tool_calls.directory import ToolDirectory
from dialog_engine.tool_calls.exposure import Exposure


@dataclass(frozen=True, slots=True)
class About:
    """What the engine says about itself."""

    version: str
    model: str
    model_label: str
    scripted: bool
    mcp_enabled: bool


@dataclass(frozen=True, slots=True)
class Readiness:
    """Whether requests can be served: they can when it is ready or degraded. `parts` says how each part is."""

    status: Literal["starting", "ready", "degraded", "unready"]
    parts: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Services:
    """Everything that routes use."""

    about: About
    choices: Choices
    turns: RunningTurns
    sessions: Sessions
    archive: Archive
    approvals: Approvals
    frames: TurnFrames
    streams: Streams
    tools: ToolDirectory
    exposure: Exposure
    readiness: Callable[[], Awaitable[Readiness]]
    metrics: Callable[[], Awaitable[bytes]]
    max_message_chars: int


async def services_of(request: Request) -> Services:
    """The services, from the typed state of the lifespan. (A plain function would be run in a thread.)"""
    return request.state.services


Engine = Annotated[Services, Depends(services_of)]
