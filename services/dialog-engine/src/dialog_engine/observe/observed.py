"""Wrappers of ports that count what passes through them."""

import time
from collections.abc import AsyncGenerator
from contextlib import aclosing

from dialog_engine.chat.ports import TurnLog, TurnLogs
from dialog_engine.errors import LLMError
from dialog_engine.model import (
    ChatEvent,
    ChatRequest,
    Done,
    ReasoningDelta,
    StreamEnd,
    TextDelta,
    ToolCallEvent,
    ToolStatus,
    ToolStep,
    Turn,
    TurnEvent,
)
from dialog_engine.observe.metrics import Metrics
from dialog_engine.tool_calls.ports import StreamChat

NOT_RUN = "(not run)"
"""Stands for the tool of calls that were answered without running anything."""


def observed_llm(llm: StreamChat, metrics: Metrics, model: str) -> StreamChat:
    """`llm`, counted as `model`."""

    async def stream_chat(request: ChatRequest) -> AsyncGenerator[ChatEvent]:
        started = time.monotonic()
        outcome = "abandoned"  # unless the stream is read to its end
        first = True
        try:
            async with aclosing(llm(request)) as events:
                async for event in events:
                    if first and isinstance(event, (TextDelta, ReasoningDelta, ToolCallEvent)):
                        metrics.llm_first_token.labels(model).observe(time.monotonic() - started)
                        first = False
                    elif isinstance(event, StreamEnd):
                        metrics.llm_tokens.labels("input", model).inc(event.usage.input_tokens)
                        metrics.llm_tokens.labels("output", model).inc(event.usage.output_tokens)
                        outcome = "ok"
                    yield event
        except LLMError as error:
            outcome = error.code
            raise
        finally:
            metrics.llm_requests.labels(outcome, model).inc()

    return stream_chat


class ObservedLogs(TurnLogs):
    """Logs that count the turns and tool calls written into them."""

    def __init__(self, logs: TurnLogs, metrics: Metrics) -> None:
        self._logs = logs
        self._metrics = metrics

    def open(self, turn: Turn) -> TurnLog:
        self._metrics.turns_running.inc()
        return _ObservedLog(self._logs.open(turn), self._metrics)

    def moved(self, turn: Turn) -> None:
        self._logs.moved(turn)


class _ObservedLog(TurnLog):
    def __init__(self, log: TurnLog, metrics: Metrics) -> None:
        self._log = log
        self._metrics = metrics
        self._pending: dict[str, float] = {}

    def append(self, event: TurnEvent) -> None:
        match event:
            case ToolStep(status=ToolStatus.PENDING):
                self._pending[event.call.correlation_id] = time.monotonic()
            case ToolStep() if event.status.final:
                # A call that no server was asked for may bear any name that the model made up.
                tool = self._metrics.tools.of(event.call.tool_name) if event.server else NOT_RUN
                self._metrics.tool_calls.labels(tool, event.status).inc()
                if started := self._pending.pop(event.call.correlation_id, None):
                    self._metrics.tool_call_seconds.labels(tool).observe(time.monotonic() - started)
            case Done():
                self._metrics.turns.labels(event.reason).inc()
            case _:
                pass
        self._log.append(event)

    async def close(self) -> None:
        self._metrics.turns_running.dec()
        await self._log.close()
