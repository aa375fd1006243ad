"""The tools that write to the effect log: real effects, and the steps of a slow job."""

from typing import Annotated

import anyio
import anyio.to_thread
from mcp.server.mcpserver import Context
from pydantic import BaseModel, Field

from examples.demo_server.effects import Effect, EffectLog, State

Token = Annotated[
    str | None, Field(description="Any text that marks this effect in the effect log; not needed", max_length=200)
]


class CounterValue(BaseModel):
    counter: str
    value: int


class DeletedNotes(BaseModel):
    deleted: int


class EffectTools:
    """Tools that share one effect log."""

    def __init__(self, log: EffectLog) -> None:
        self._log = log

    async def increment_counter(
        self,
        counter: Annotated[str, Field(description="Which counter", min_length=1, max_length=80)] = "demo",
        token: Token = None,
        answer_after_seconds: Annotated[
            float, Field(description="Wait this long after the effect before answering", ge=0, le=600)
        ] = 0,
    ) -> CounterValue:
        """Add one to a counter and tell its new value. Every call counts: calling again adds one more."""

        def one_more(state: State) -> Effect:
            value = state.counters[counter] + 1
            return {"effect": "increment_counter", "counter": counter, "value": value, "token": token}

        effect = await anyio.to_thread.run_sync(self._log.record, one_more)
        # During this wait a crash loses the answer but not the effect. Tests and demonstrations choose its length.
        await anyio.sleep(answer_after_seconds)
        return CounterValue(counter=counter, value=effect["value"])

    def add_note(
        self, note: Annotated[str, Field(description="The text of the note", min_length=1, max_length=500)]
    ) -> str:
        """Add a note to the demo's own notes."""
        self._log.record(lambda _: {"effect": "add_note", "note": note})
        return f"Noted: {note}"

    def delete_everything(self, token: Token = None) -> DeletedNotes:
        """Delete all of the demo's own notes. This cannot be undone. Nothing outside the demo is touched."""
        effect = self._log.record(
            lambda state: {"effect": "delete_everything", "deleted": len(state.notes), "token": token}
        )
        return DeletedNotes(deleted=effect["deleted"])

    async def slow_job(
        self,
        ctx: Context,
        seconds: Annotated[float, Field(description="How long the job takes", ge=0, le=600)] = 5,
        steps: Annotated[int, Field(description="How many steps it reports", ge=1, le=100)] = 5,
        token: Token = None,
    ) -> str:
        """Run a job that takes a while, does nothing else, reports its progress and can be cancelled."""
        await self._log_job("started", token)
        try:
            for step in range(1, steps + 1):
                await anyio.sleep(seconds / steps)
                await ctx.report_progress(step, steps, f"step {step} of {steps} done")
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True):  # so that tests can see that the cancel arrived
                await self._log_job("cancelled", token)
            raise
        await self._log_job("finished", token)
        return f"The slow job finished: {steps} steps in {seconds:g} seconds."

    def notes(self) -> str:
        """The demo's own notes, as a Markdown list."""
        return "\n".join(f"- {note}" for note in self._log.notes()) or "(no notes)"

    async def _log_job(self, status: str, token: str | None) -> None:
        def step(_: State) -> Effect:
            return {"effect": "slow_job", "status": status, "token": token}

        await anyio.to_thread.run_sync(self._log.record, step)
