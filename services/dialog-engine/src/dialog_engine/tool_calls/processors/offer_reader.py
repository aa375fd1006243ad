"""Before each request: a model that has seen a part of a result is offered the tool that reads the rest."""

from dataclasses import replace

from dialog_engine.model import ToolMessage
from dialog_engine.tool_calls.context import TurnContext
from plugins_contract.catalogue import ToolEntry


class OfferReader:
    """The tools change at most once in a turn, behind the first result that was cut, and never back.

    Providers keep what they have read of a conversation by its beginning, of which the tools are a part: a tool that
    is of no use yet is not worth a place there, and one that comes and goes would make them read all of it again.
    """

    def __init__(self, reader: ToolEntry) -> None:
        self._reader = reader

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Adds the reader, behind the other tools, when a result in the conversation was cut."""
        if self._reader in ctx.tools or not any(isinstance(m, ToolMessage) and m.cut for m in ctx.messages):
            return ctx
        return replace(ctx, tools=(*ctx.tools, self._reader))
