"""Step 6, each round: the results in the words the model reads."""

from dataclasses import replace

from dialog_engine.model import AssistantMessage
from dialog_engine.tool_calls import views
from dialog_engine.tool_calls.context import TurnContext


class ResultFormatting:
    """Puts the assistant's message and, right behind it, one result per call into the conversation."""

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the messages of this round."""
        if not ctx.calls:
            return ctx
        said = AssistantMessage(ctx.reply.text, ctx.calls, ctx.reply.reasoning)
        results = (views.tool_message(result.call, result.outcome, result.edited) for result in ctx.results)
        return replace(ctx, messages=(*ctx.messages, said, *results))
