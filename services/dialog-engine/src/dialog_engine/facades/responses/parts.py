"""Texts and reasoning as items of the Responses API, each with one part. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dialog_engine.chat import events

Json = dict[str, Any]


def inside(text: str) -> str:
    """A text as the inside of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]


@dataclass(frozen=True, slots=True)
class Part:
    """The names of what is sent about a text, or about reasoning. `index` names the place of the part in its item."""

    kind: str
    prefix: str
    item_id: str
    index: str
    added: str
    delta: str
    done: str
    part_done: str
    extra: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the events about its text have beside that."""

    def at(self, place: int) -> Json:
        """Where it is, as its events say it."""
        return {"item_id": self.item_id, "output_index": place, self.index: 0}

    def content(self, text: str) -> Json:
        """The part with this text."""
        if self.kind == events.TEXT:
            return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        return {"type": "summary_text", "text": text}

    def item(self, text: str | None = None, status: str = "in_progress", phase: str | None = None) -> Json:
        """The item; without a text, at its beginning."""
        parts = [] if text is None else [self.content(text)]
        if self.kind != events.TEXT:
            return {"id": self.item_id, "type": "reasoning", "summary": parts, "status": status}
        item = {"id": self.item_id, "type": "message", "role": "assistant", "status": status, "content": parts}
        return item | ({"phase": phase} if phase else {})


def part_of(kind: str, item_id: str) -> Part:
    """A part of this kind: TEXT or REASONING."""
    if kind == events.TEXT:
        text = "response.output_text"
        names = "response.content_part.added", f"{text}.delta", f"{text}.done", "response.content_part.done"
        return Part(kind, "msg", item_id, "content_index", *names, {"logprobs": []})
    part, text = "response.reasoning_summary_part", "response.reasoning_summary_text"
    return Part(kind, "rs", item_id, "summary_index", f"{part}.added", f"{text}.delta", f"{text}.done", f"{part}.done")
