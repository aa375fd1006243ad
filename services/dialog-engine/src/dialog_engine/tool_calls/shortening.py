"""A long result is shown to the model as its head and tail; the engine keeps the whole. Pure."""

from collections.abc import Sequence

import msgspec

from dialog_engine.tool_calls.texts import WholeResult, model_parts, whole_of
from plugins_contract.outcomes import ContentBlock, CutBlock, LinkBlock, TextBlock, ToolOutcome


def result_id(correlation_id: str) -> str:
    """A short name of a result, which a model copies without an error: the random end of its correlation id."""
    return correlation_id[-8:]


def shorten(outcome: ToolOutcome, correlation_id: str, max_chars: int) -> tuple[ToolOutcome, WholeResult | None]:
    """The outcome with at most `max_chars` of text for the model, and as much for the user only.

    With it comes the whole, where something was left out. Images, sounds and files stay.
    """
    whole = whole_of(outcome)
    content = outcome.content
    if len(whole.for_model) > max_chars:
        content = _head_and_tail(content, whole.for_model, result_id(correlation_id), max_chars)
    content = _heads_for_user(content, max_chars)
    if content == outcome.content:
        return outcome, None
    return msgspec.structs.replace(outcome, content=content, truncated=True), whole


def end_of_line(text: str, start: int, end: int) -> int:
    """`end`, or before it the end of the last line that ends in the last quarter of this piece of text."""
    found = text.rfind("\n", end - (end - start) // 4, end)
    return end if found < 0 else found + 1


def start_of_line(text: str, start: int) -> int:
    """`start`, or after it the beginning of the first line that begins in the first quarter of the rest."""
    found = text.find("\n", start, start + (len(text) - start) // 4)
    return start if found < 0 else found + 1


def _head_and_tail(content: Sequence[ContentBlock], text: str, name: str, max_chars: int) -> tuple[ContentBlock, ...]:
    """The blocks without the middle of `text`, which is what the model reads of them."""
    # What a text is about stands at its head; how it ended, at its tail.
    head = end_of_line(text, 0, max_chars * 2 // 3)
    tail = start_of_line(text, len(text) - (max_chars - head))
    cut = CutBlock(name, head, tail - head, len(text))
    words = dict(model_parts(content))
    kept: list[ContentBlock] = []
    ends = -1
    for number, block in enumerate(content):
        if number not in words:
            kept.append(block)
            continue
        begins = ends + 1  # a line break stands between two blocks
        ends = begins + len(words[number])
        if begins >= tail or ends <= head:
            kept.append(block)
            continue
        match block:
            case TextBlock(whole):
                pieces = [whole[: max(0, head - begins)], whole[max(0, tail - begins) :] if ends > tail else ""]
            case LinkBlock() if head <= begins and ends <= tail:
                pieces = ["", ""]
            case _:
                kept.append(block)
                continue
        kept += [TextBlock(pieces[0])] if pieces[0] else []
        kept += [cut] if cut not in kept else []
        kept += [TextBlock(pieces[1])] if pieces[1] else []
    return tuple(kept)


def _heads_for_user(content: Sequence[ContentBlock], max_chars: int) -> tuple[ContentBlock, ...]:
    """The blocks with `max_chars` of the text that is for the user only: its head."""
    kept: list[ContentBlock] = []
    room = max_chars
    for block in content:
        match block:
            case TextBlock(text, user_only=True) if len(text) > room:
                kept += [TextBlock(text[:room], user_only=True)] if room else []
                room = 0
            case TextBlock(text, user_only=True):
                room -= len(text)
                kept.append(block)
            case _:
                kept.append(block)
    return tuple(kept)
