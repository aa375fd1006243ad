"""The result of a call as the model reads it."""

from collections.abc import Mapping
from typing import Any

import msgspec

from dialog_engine.model import MediaInStore, ToolCall, ToolMessage
from dialog_engine.tool_calls.results.shortening import has_media_or_links, model_text, perceptible, user_text
from dialog_engine.tool_calls.values import refusal_in
from plugins_contract.errors import ErrorCode
from plugins_contract.outcomes import CallState, CutBlock, MediaBlock, ToolError, ToolOutcome

NOTHING = "The tool returned nothing."


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
    words, refusal = for_model(outcome, edited), refusal_in(outcome)
    return ToolMessage(call.tool_call_id, call.name, words, tuple(media), failed, cut, refusal)


def for_model(outcome: ToolOutcome, edited: Mapping[str, Any] | None = None) -> str:
    """The result as the model reads it. It is never empty.

    `edited` are the arguments that the call was run with, if the person who approved it changed them. The text says so,
    because the message of the model still has its own arguments.
    """
    if edited is None:
        return _for_model(outcome)
    ran_with = msgspec.json.encode(edited).decode()
    return f"{_for_model(outcome)}\n\n(The user approved this call with other arguments: it was run with {ran_with})"


def _for_model(outcome: ToolOutcome) -> str:
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
