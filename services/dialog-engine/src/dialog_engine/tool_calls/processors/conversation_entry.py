"""Step 1, once: the conversation as the model is to see it."""

from dataclasses import replace

from dialog_engine.model import SystemMessage
from dialog_engine.tool_calls.context import TurnContext


class ConversationEntry:
    """Puts the system prompt in front of the history."""

    def __init__(self, system_prompt: str) -> None:
        self._system_prompt = system_prompt

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the system message; an empty prompt adds none."""
        if not self._system_prompt:
            return ctx
        return replace(ctx, messages=(SystemMessage(self._system_prompt), *ctx.messages))
