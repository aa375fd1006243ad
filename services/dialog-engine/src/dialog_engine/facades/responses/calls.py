"""The tool calls of a turn, as items of the Responses API. Pure."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from dialog_engine.facades.responses.ids import FUNCTION_CALL, approval_id, item_id

_PENDING = "pending"
_OPEN = (_PENDING, "queued", "running", "progress")
_APPROVED = ("approved", "edited")


@dataclass(slots=True)
class Call:
    """A call, and what the client was sent of it in this response. `place` is -1 for nothing."""

    item: dict[str, Any]
    place: int = -1
    by_client: bool = False
    """The client runs it: it is an item at once, and its result is no item."""
    asked: dict[str, Any] | None = None
    """The request for its approval, while nobody has decided."""
    requests: dict[str, int] = field(default_factory=dict[str, int])
    """The places of the requests for its approval that the client was sent, by their ids."""
    shown_request: str = ""
    """The id of the one that is in the response, '' for none."""
    declined: bool = False
    """Nobody has approved it: then it has no item."""
    earlier: bool = False
    """It has ended in an earlier response of the turn."""
    started: bool = False
    """Whether it was sent to a worker, or has ended."""
    ended: bool = False
    is_done: bool = False
    """Whether the client has got its end."""
    settled: bool = False
    """Whether what is known of its approval is a decision."""
    decided: bool = False
    """Whether it was decided since the turn has waited for its user last."""

    def is_answered_by(self, step: dict[str, Any]) -> bool:
        """Whether this step of it says how its user, or its client, has answered: a call that has started was approved,
        whatever the log lacks."""
        decides = step["type"] == "approval" and step["status"] != "asked"
        return self.ended if self.by_client else decides or self.started


@dataclass(slots=True)
class Calls:
    """The calls of one turn, by correlation id."""

    turn_id: str
    known: dict[str, Call] = field(default_factory=dict[str, Call])

    def take(self, step: dict[str, Any]) -> Call:
        """Keep what a step says of its call, or of the approval of that."""
        call = self.known.setdefault(step["correlationId"], Call(self._item(step)))
        if step.get("waitsFor") == "client" and not call.by_client:
            call.by_client, call.item = True, self._function(step)
        if "arguments" in step:
            call.item["arguments"] = msgspec.json.encode(step["arguments"]).decode()
        if step["type"] == "approval":
            self._take_approval(call, step)
        elif step["status"] != _PENDING:
            call.started = True
            if call.asked:
                call.asked, call.decided, call.settled = None, True, True
            if step["status"] not in _OPEN:
                call.ended = True
                call.item |= {} if call.by_client else _outcome(step)
        return call

    def waiting(self, call_ids: list[str]) -> list[Call]:
        """Those of these calls that wait for approval, or for the client."""
        calls = [call for each in call_ids if (call := self.known.get(each))]
        return [call for call in calls if call.asked or call.by_client]

    def shown(self) -> list[Call]:
        """Those that have an item in this response."""
        return [call for call in self.known.values() if call.place >= 0]

    def begin(self) -> list[Call]:
        """Another response begins, and nothing was sent in it yet. Returns the calls that belong to it already: those
        that have started, and were decided since the turn has waited for its user last."""
        for call in self.known.values():
            call.place, call.requests, call.shown_request, call.is_done = -1, {}, "", False
            call.earlier = call.ended and not call.decided
        return [call for call in self.known.values() if call.decided and call.started]

    def waited(self) -> None:
        """The turn waits for its user."""
        for call in self.known.values():
            call.decided = False

    def _item(self, step: dict[str, Any]) -> dict[str, Any]:
        server, name = step["server"], step["toolName"]
        return {
            "id": item_id("mcp", self.turn_id, step["correlationId"]),
            "type": "mcp_call",
            "server_label": server,
            "name": name.removeprefix(f"{server}__"),
            "arguments": "{}",
            "approval_request_id": None,
            "output": None,
            "error": None,
            "status": "in_progress",
        }

    def _function(self, step: dict[str, Any]) -> dict[str, Any]:
        return {
            "id": item_id(FUNCTION_CALL, self.turn_id, step["correlationId"]),
            "type": "function_call",
            "call_id": step["correlationId"],
            "name": step["toolName"],
            "arguments": "{}",
            "status": "completed",
        }

    def _take_approval(self, call: Call, step: dict[str, Any]) -> None:
        if "hash" in step:  # of a question, or of a decision that is read after a reset without it
            call.item["approval_request_id"] = approval_id(self.turn_id, step["correlationId"], step["hash"])
        if step["status"] != "asked":
            call.decided = call.decided or not call.settled
            call.asked, call.settled = None, True
            call.declined = step["status"] not in _APPROVED
            return
        if call.started:  # it is over, and a reset says again what was asked
            return
        call.settled = False
        shown = {name: call.item[name] for name in ("server_label", "name", "arguments")}
        call.asked = {"id": call.item["approval_request_id"], "type": "mcp_approval_request", **shown}


def _outcome(step: dict[str, Any]) -> dict[str, Any]:
    text = step.get("result", {}).get("text", "")
    if step["status"] == "succeeded":
        return {"output": text, "status": "completed"}
    content = [{"type": "text", "text": text or step["error"]["message"]}]
    return {"error": {"type": "mcp_tool_execution_error", "content": content}, "status": "failed"}
