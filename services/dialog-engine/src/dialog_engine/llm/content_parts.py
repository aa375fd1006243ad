"""Content that comes as a list of parts in the place of a text, as Mistral's reasoning models send it. Pure."""

from collections.abc import Iterator
from typing import Any, cast

from dialog_engine.model import LLMEvent, ReasoningDelta, TextDelta


def said_in(content: list[dict[str, Any]]) -> Iterator[LLMEvent]:
    """What the parts say, in their order."""
    for part in content:
        if thinking := part.get("thinking"):
            thoughts = cast("list[object]", thinking) if isinstance(thinking, list) else [{"text": thinking}]
            yield from (ReasoningDelta(text) for text in map(_text_of_part, thoughts) if text)
        elif text := _text_of_part(part):
            yield TextDelta(text)


def _text_of_part(part: object) -> str:
    match part:
        case {"text": str(text)}:
            return text
        case _:
            return ""
