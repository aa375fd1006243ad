"""Step 2, each round: which tools the model is offered."""

from collections.abc import Sequence
from dataclasses import replace

from dialog_engine.tool_calls.context import TurnContext
from dialog_engine.tool_calls.exposure import Exposure
from dialog_engine.tool_calls.ports import ToolSource
from plugins_contract.catalogue import ToolEntry


class ToolPreparation:
    """Offers the tools of the published catalogue, as the exposure has it, and the engine's own."""

    def __init__(
        self,
        source: ToolSource,
        exposure: Exposure,
        own: Sequence[ToolEntry] = (),
        reader: ToolEntry | None = None,
    ) -> None:
        """`reader` reads the rest of a result, and is offered to a model that has seen a part of one."""
        self._source = source
        self._exposure = exposure
        self._own = tuple(own)
        self._reader = reader

    async def process(self, ctx: TurnContext) -> TurnContext:
        """Sets the tools. The catalogue stays the same for the whole turn, so that a model never loses a tool between
        rounds; it may find more of them."""
        catalogue = self._source.tools() if ctx.catalogue is None else ctx.catalogue
        await self._exposure.prepare(catalogue)
        tools = self._exposure.offered(catalogue, ctx.messages, self._own, self._reader)
        return replace(ctx, catalogue=catalogue, tools=tools)
