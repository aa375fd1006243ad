"""Step 1, once: which tools the model is offered."""

from dataclasses import replace

from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.ports import ToolSource


class ToolPreparation:
    """Takes the tools from the published catalogue."""

    def __init__(self, source: ToolSource) -> None:
        self._source = source

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the tools. They stay the same for the whole turn, so that a model never loses one between rounds."""
        return replace(ctx, tools=self._source.tools())
