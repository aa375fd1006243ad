"""The text of a result, for the model and for the user, and how it is shortened. Pure.

A long result is shown to the model as its head and tail, and to the user as its head; the engine stores the whole. The
worker has a limit of its own (RESULT_MAX_BYTES), beyond which nothing is kept.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from dialog_engine.model import MediaInStore, ToolCall, ToolMessage, storable_json
from dialog_engine.tool_calls.values import WholeResult, refusal_in
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import (
    CallState,
    ContentBlock,
    CutBlock,
    LinkBlock,
    MediaBlock,
    TextBlock,
    ToolError,
    ToolOutcome,
)

RESULT_MAX_CHARS = 16_000
"""Characters of a result that a model is shown; the default of the setting."""
USER_MAX_CHARS = 4_000
"""Characters of a result, or of arguments that are not a JSON object, that a user is shown at first."""
READ_RESULT = "read_result"
"""The name of the tool that reads what was left out."""


def whole_of(outcome: ToolOutcome) -> WholeResult:
    """The texts of an outcome as it is."""
    for_model, for_user = model_text(outcome), user_text(outcome)
    return WholeResult(for_model, None if for_model == for_user else for_user)


def model_text(outcome: ToolOutcome) -> str:
    """The content as the model reads it."""
    return "\n".join(text for _, text in model_parts(outcome.content))


def model_parts(content: Sequence[ContentBlock]) -> Iterator[tuple[int, str]]:
    """The positions of the blocks that the model reads, each with its text."""
    for number, block in enumerate(content):
        match block:
            case CutBlock():
                yield number, _cut(block)
            case TextBlock(user_only=True) | MediaBlock(user_only=True) | LinkBlock(user_only=True):
                pass
            case TextBlock(text):
                yield number, text
            case MediaBlock():
                yield number, _media(block)
            case LinkBlock():
                yield number, _link(block)


def user_text(outcome: ToolOutcome) -> str:
    """The text of the content as the user reads it; images and links are shown beside it."""
    parts: list[str] = []
    for block in outcome.content:
        match block:
            case TextBlock(text):
                parts.append(text)
            case CutBlock(characters=characters, total=total):
                parts.append(f"[… {characters:,} of {total:,} characters left out …]")
            case MediaBlock() | LinkBlock():
                pass
    return "\n".join(parts)


def has_media_or_links(outcome: ToolOutcome) -> bool:
    """Whether a user is shown something beside the text."""
    return any(isinstance(block, MediaBlock | LinkBlock) for block in outcome.content)


def _cut(block: CutBlock) -> str:
    return (
        f"[… {block.characters:,} of {block.total:,} characters left out: call {READ_RESULT} with"
        f' id "{block.result_id}" and offset {block.offset} …]'
    )


def _media(block: MediaBlock) -> str:
    where = f" {block.uri}" if block.uri else ""
    if perceptible(block):
        return f"[{block.mime_type}{where}, shown to the user]"
    return f"[{block.mime_type}{where} of {block.size:,} bytes: the user can download it, you cannot read it]"


def perceptible(block: MediaBlock) -> bool:
    """Whether it is an image or a sound, which some models can see or hear."""
    return block.mime_type.startswith(("image/", "audio/"))


def _link(block: LinkBlock) -> str:
    facts = [block.mime_type] if block.mime_type else []
    facts += [f"{block.size:,} bytes"] if block.size is not None else []
    about = f" ({', '.join(facts)})" if facts else ""
    described = f": {block.description}" if block.description else ""
    return f"[{block.title or block.name}]({block.uri}){about}{described}"


# --- The result as a message ---

NOTHING = "The tool returned nothing."
STATE_LOST = (
    "(The server had lost its state: whatever earlier calls opened, stored or signed in to there is gone, and this call"
    " began anew.)"
)


def _in_store(block: MediaBlock, correlation_id: str, number: int) -> MediaBlock:
    """The block, and where its data is if it is not here."""
    if block.data:
        return block
    kind, size = block.mime_type, block.stored_size
    return MediaInStore(kind, "", block.uri, stored_size=size, correlation_id=correlation_id, number=number)


def tool_message(call: ToolCall, outcome: ToolOutcome, edited: Mapping[str, Any] | None = None) -> ToolMessage:
    """The result as a message of the conversation: its text, with the images and sounds of it."""
    media = (
        _in_store(block, call.correlation_id, number)
        for number, block in enumerate(outcome.content)
        if isinstance(block, MediaBlock) and not block.user_only and perceptible(block)
    )
    cut = any(isinstance(block, CutBlock) for block in outcome.content)
    failed = outcome.state is not CallState.SUCCEEDED
    words, refusal = for_model(outcome, edited), refusal_in(outcome) if failed else ""
    return ToolMessage(call.tool_call_id, call.name, words, tuple(media), failed, cut, refusal)


def for_model(outcome: ToolOutcome, edited: Mapping[str, Any] | None = None) -> str:
    """The result as the model reads it. It is never empty. That the server lost its state stands first.

    `edited` are the arguments that the call was run with, if the person who approved it changed them. The text says so,
    because the message of the model still has its own arguments.
    """
    if edited is None:
        return _for_model(outcome)
    ran_with = msgspec.json.encode(edited).decode()
    return f"{_for_model(outcome)}\n\n(The user approved this call with other arguments: it was run with {ran_with})"


def _for_model(outcome: ToolOutcome) -> str:
    if outcome.state_lost:
        return f"{STATE_LOST}\n{_for_model(msgspec.structs.replace(outcome, state_lost=False))}"
    text = model_text(outcome)
    if outcome.state is CallState.SUCCEEDED:
        if text.strip():
            return text
        for_user = has_media_or_links(outcome) or user_text(outcome).strip()
        return f"{NOTHING[:-1]} for you: what it returned is shown to the user." if for_user else NOTHING
    error = outcome.error or ToolError(ErrorCode.UNKNOWN_ERROR, "")
    why = text if text.strip() else error.message
    text = f"Error {error.code}: {why or f'the call ended as {outcome.state}, for a reason that is not known'}"
    if error.code is ErrorCode.NOT_APPROVED:
        text += "\nDo not make this call again unless the user asks you to."
    if outcome.state is CallState.UNKNOWN:
        text = f"{text.rstrip('.')}. It may or may not have taken effect. Do not repeat it on your own: tell the user."
    return text


# --- Shortening ---


def result_id(correlation_id: str) -> str:
    """A short id of a result that models copy without errors: the random end of its correlation id."""
    return correlation_id[-8:]


def storable_outcome(outcome: ToolOutcome) -> ToolOutcome:
    """The outcome without U+0000 in any of its texts."""
    parts = (*outcome.content, *([outcome.error] if outcome.error else []))
    texts = (value for part in parts for value in msgspec.structs.astuple(part) if isinstance(value, str))
    if not any("\0" in text for text in texts):
        return outcome
    return msgspec.json.decode(storable_json(msgspec.json.encode(outcome).decode()), type=ToolOutcome)


def shorten(outcome: ToolOutcome, correlation_id: str, max_chars: int) -> tuple[ToolOutcome, WholeResult | None]:
    """The outcome with at most `max_chars` characters of text for the model, and as many for the user only.

    The second value is the full text, or None if nothing was left out. Images, sounds and files are kept.
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
    """The end of the last line that ends in the last quarter of text[start:end], or `end` if there is none."""
    found = text.rfind("\n", end - (end - start) // 4, end)
    return end if found < 0 else found + 1


def start_of_line(text: str, start: int) -> int:
    """The beginning of the first line that begins in the first quarter of text[start:], or `start` if there is none."""
    found = text.find("\n", start, start + (len(text) - start) // 4)
    return start if found < 0 else found + 1


def _head_and_tail(content: Sequence[ContentBlock], text: str, name: str, max_chars: int) -> tuple[ContentBlock, ...]:
    """The blocks without the middle of `text`, which is the text of all of them for the model."""
    # The head says what a text is about, and the tail how it ended.
    head = end_of_line(text, 0, max_chars * 2 // 3)
    tail = start_of_line(text, len(text) - (max_chars - head))
    cut = CutBlock(name, head, tail - head, len(text))
    words = dict(model_parts(content))
    kept: list[ContentBlock] = []
    ends, has_cut = -1, False
    for number, block in enumerate(content):
        if number not in words:
            kept.append(block)
            continue
        begins = ends + 1  # there is a line break between two blocks
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
        kept += [] if has_cut else [cut]
        has_cut = True
        kept += [TextBlock(pieces[1])] if pieces[1] else []
    return tuple(kept)


def _heads_for_user(content: Sequence[ContentBlock], max_chars: int) -> tuple[ContentBlock, ...]:
    """The blocks with only the first `max_chars` characters of the text that is for the user only."""
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
