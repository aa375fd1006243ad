"""Which resources a turn has read, as its events say: also where it was begun by another engine, whose events a reset
has. Pure."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from dialog_engine.model import Done, Reset, ResourceUpdated, ToolStatus, ToolStep, Turn, TurnEvent
from dialog_engine.tool_calls.resource_tools import READ_RESOURCE, resource_of
from plugins_contract.sessions import owners_of
from plugins_contract.updates import ResourcesUpdated


class ReadResources:
    """The resources that one turn has read, by server and URI."""

    def __init__(self) -> None:
        self._read: set[tuple[str, str]] = set()

    def follow(self, event: TurnEvent) -> None:
        """Note what an event of the turn says."""
        match event:
            case ToolStep(status=ToolStatus.SUCCEEDED, call=call) if call.name == READ_RESOURCE:
                self._read.add(resource_of(call))
            case Reset(events=events):
                for each in events:
                    self.follow(each)
            case Done():
                self._read.clear()  # no event comes after it
            case _:
                pass

    def shown(self, turn: Turn, update: ResourcesUpdated) -> Iterator[ResourceUpdated]:
        """The events of an update, which may be that of the session of another conversation or subject."""
        if not update.owner or update.owner in owners_of(turn):
            for uri in update.uris:
                if (update.server, uri) in self._read:
                    yield ResourceUpdated(update.server, uri)


class Reading(Protocol):
    """A running turn."""

    @property
    def turn(self) -> Turn:
        """The turn."""
        ...

    @property
    def read(self) -> ReadResources:
        """What it has read."""
        ...

    def emit(self, event: TurnEvent) -> None:
        """Show an event."""
        ...


def show(turns: Iterable[Reading], update: ResourcesUpdated) -> None:
    """Show an update in the turns that have read its resources."""
    for running in turns:
        for event in running.read.shown(running.turn, update):
            running.emit(event)
