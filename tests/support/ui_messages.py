"""A page with the Vercel AI SDK: what its message has after chunks of a stream, as `readUIMessageStream` makes it."""

import json
from typing import Any


class PageError(Exception):
    """The package `ai` would end the chat with an error."""


class Page:
    """One message of the assistant."""

    def __init__(self) -> None:
        self.id = ""
        self.parts: list[dict[str, Any]] = []
        self.finish = ""
        self.metadata: dict[str, Any] = {}
        self.ended = 0
        """How many streams have ended in their order."""
        self._open: dict[str, dict[str, Any]] = {}
        self._begun = False

    @property
    def text(self) -> str:
        """The text of the message."""
        return "".join(part["text"] for part in self.parts if part["type"] == "text")

    def call(self, call_id: str) -> dict[str, Any]:
        """A call. Raises PageError when there is none."""
        found = [part for part in self.parts if part.get("toolCallId") == call_id]
        if len(found) != 1:
            raise PageError(f"{len(found)} calls have the id {call_id}")
        return found[0]

    def read(self, data: bytes) -> None:
        """Take a piece of a stream, which ends between two events."""
        for event in data.decode().removesuffix("\n\n").split("\n\n"):
            payload = event.removeprefix("data: ")
            if payload == "[DONE]":
                if self._begun or self._open:
                    raise PageError("the stream ends in the middle")
                self.ended += 1
            else:
                self._take(json.loads(payload))

    def _take(self, chunk: dict[str, Any]) -> None:
        kind: str = chunk["type"]
        if not self._begun and kind != "start":
            raise PageError(f"{kind} is in a wrong place")
        match kind:
            case "start":
                self.id, self._begun = chunk["messageId"], True
                self.metadata |= chunk.get("messageMetadata", {})
            case "finish":
                self.finish, self._begun = chunk["finishReason"], False
                self.metadata |= chunk["messageMetadata"]
            case "text-start" | "reasoning-start":
                self._open[chunk["id"]] = {"type": kind.removesuffix("-start"), "text": ""}
                self.parts.append(self._open[chunk["id"]])
            case "text-delta" | "reasoning-delta":
                self._open[chunk["id"]]["text"] += chunk["delta"]
            case "text-end" | "reasoning-end":
                del self._open[chunk["id"]]
            case "start-step":
                self.parts.append({"type": "step-start"})
            case "reset-step":
                while self.parts[-1]["type"] != "step-start":
                    self.parts.pop()
                self._open.clear()
            case "tool-input-available":
                self.parts.append({**chunk, "type": "dynamic-tool", "state": "input-available"})
                self.call(chunk["toolCallId"])
            case "tool-approval-response":
                [part] = [part for part in self.parts if part.get("approvalId") == chunk["approvalId"]]
                part["state"] = "approval-responded"
            case "tool-approval-request" | "tool-output-available" | "tool-output-error" | "tool-output-denied":
                self.call(chunk["toolCallId"]).update(
                    {"preliminary": None, **chunk, "type": "dynamic-tool", "state": kind}
                )
            case "file":
                self.parts.append(chunk)
            case _:
                if kind not in ("finish-step", "abort", "error", "data-approval", "data-question"):
                    raise PageError(f"{kind} is not known")
