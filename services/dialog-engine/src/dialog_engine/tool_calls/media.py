"""How many images and sounds of a conversation a model is sent. Pure."""

from collections.abc import Sequence
from dataclasses import replace

from dialog_engine.model import Message, ToolMessage
from plugins_contract.outcomes import MediaBlock

MAX_BLOCKS = 8
"""Images and sounds in one request: each costs tokens again in every round."""
MAX_BASE64 = 8_000_000
"""Characters of all of them together: the large providers take requests of 20 to 50 MB, gateways often less."""


def within_sight(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The same conversation with its newest images and sounds only, as many as fit.

    The text of a result still names those that are left out.
    """
    blocks, room = MAX_BLOCKS, MAX_BASE64
    seen: list[Message] = []
    for message in reversed(messages):
        if not isinstance(message, ToolMessage) or not message.media:
            seen.append(message)
            continue
        kept: list[MediaBlock] = []
        for block in reversed(message.media):
            if blocks and len(block.data) <= room:
                kept.append(block)
                blocks, room = blocks - 1, room - len(block.data)
            else:
                blocks = 0  # what is older goes too: a model that sees an old image but not a newer one is misled
        seen.append(message if len(kept) == len(message.media) else replace(message, media=tuple(reversed(kept))))
    return tuple(reversed(seen))
