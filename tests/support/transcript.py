"""A client of the event protocol in its shortest form: what a reader of docs/protocol.md would write."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Json = Mapping[str, Any]


@dataclass
class Transcript:
    """One turn as its events tell it, over any number of connections. `repeats` must stay empty."""

    last_id: str = ""
    messages: dict[int, str] = field(default_factory=dict[int, str])
    """Finished messages by id, in the order in which they came."""
    calls: dict[str, dict[str, Any]] = field(default_factory=dict[str, dict[str, Any]])
    """The latest step of each call, with its arguments, by correlation id."""
    open_text: str = ""
    done: Json | None = None
    resets: int = 0
    repeats: list[str] = field(default_factory=list[str])
    """Ids that came although they, or later ones, had been seen."""

    def take(self, event_id: str, name: str, data: Json) -> None:
        if self.last_id and place(event_id) <= place(self.last_id):
            self.repeats.append(event_id)
            return
        self.last_id = event_id
        self._apply(name, data)

    def _apply(self, name: str, data: Json) -> None:
        match name:
            case "text":
                self.open_text += data["delta"]
            case "message":
                self.messages[data["messageId"]] = data["content"]
                self.open_text = ""
            case "control" if data["type"] == "tool":
                self.calls.setdefault(data["correlationId"], {}).update(data)
            case "reset":
                self.resets += 1
                self.messages.clear()
                self.calls.clear()
                self.open_text = ""
                for each in data["events" if "events" in data else "told"]:  # an engine 0.1.0 says told
                    self._apply(each["event"], each["data"])
            case "done":
                self.done = data
            case _:
                pass

    @property
    def text(self) -> str:
        """All that was said: the finished messages, then what is being written."""
        return "".join(self.messages.values()) + self.open_text

    @property
    def statuses(self) -> dict[str, str]:
        return {call: step["status"] for call, step in self.calls.items()}


def place(event_id: str) -> tuple[int, int]:
    epoch, _, number = event_id.partition("-")
    return int(epoch), int(number)
