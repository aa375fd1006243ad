"""When a turn has to come to its end. Pure."""

from dialog_engine.model import FinishReason


def last_answer(depth: int, max_rounds: int) -> FinishReason | None:
    """Why the model's next reply must be its answer, None when it may still call tools."""
    return FinishReason.MAX_ROUNDS if depth >= max_rounds else None
