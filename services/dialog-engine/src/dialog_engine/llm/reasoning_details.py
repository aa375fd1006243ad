"""A model's reasoning as OpenRouter tells it: blocks, some of them signed or encrypted, that go back with the calls.

Without them Gemini refuses the results of its calls, and Claude reasoning whose signature is missing. They go back as
they came, in their order, and to the model that made them only: others refuse the signatures
(https://openrouter.ai/docs/guides/best-practices/reasoning-tokens, "Preserving reasoning").
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

DETAILS = "reasoning_details"
"""The field of a message on the wire, and of a call's `extra`."""

_PIECEWISE = ("text", "summary", "data")

Block = dict[str, Any]


class Kept(msgspec.Struct, frozen=True):
    """What a call's `extra` keeps of its message."""

    model: str
    blocks: list[Block]


class ReasoningDetails:
    """Puts the blocks of one message together from their fragments."""

    def __init__(self) -> None:
        self._blocks: list[Block] = []

    def add(self, fragments: Sequence[Block]) -> None:
        """Take the next fragments. Those of one type and index are one block, unless they name different calls."""
        for fragment in fragments:
            block = next((known for known in self._blocks if _continues(known, fragment)), None)
            if block is None:
                self._blocks.append(dict(fragment))
                continue
            for name, value in fragment.items():
                if name in _PIECEWISE and isinstance(value, str):
                    before = block.get(name) or ""
                    # Encrypted data that is sent once more is no second piece.
                    block[name] = before if name == "data" and before == value else before + value
                elif value is not None:
                    block[name] = value

    def kept(self, model: str) -> dict[str, Any]:
        """What the first call of the message keeps; nothing where there is nothing."""
        return {DETAILS: msgspec.to_builtins(Kept(model, self._blocks))} if self._blocks else {}


def kept_of(extras: Sequence[Mapping[str, Any] | None]) -> Kept | None:
    """What the calls of one message have kept of its reasoning."""
    for extra in extras:
        if extra and DETAILS in extra:
            try:
                return msgspec.convert(extra[DETAILS], Kept)
            except msgspec.ValidationError:
                return None
    return None


def _continues(block: Block, fragment: Block) -> bool:
    if (block.get("type"), block.get("index")) != (fragment.get("type"), fragment.get("index")):
        return False
    if fragment.get("index") is None and "data" in fragment:
        return False  # encrypted blocks are whole, and nothing else would tell them apart
    return not (block.get("id") and fragment.get("id")) or block["id"] == fragment["id"]
