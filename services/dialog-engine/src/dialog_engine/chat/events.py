"""The events of a turn in the words of the protocol: a name and a JSON-ready value."""

from typing import Any

from dialog_engine.model import (
    ApprovalStep,
    Done,
    MessageFinished,
    ReasoningDelta,
    Reset,
    RoundComplete,
    TextDelta,
    ToolCall,
    ToolStep,
    TurnEvent,
    TurnFailed,
    TurnStarted,
    Usage,
)

TEXT = "text"
REASONING = "reasoning"
DONE = "done"
RESET = "reset"


def encode(event: TurnEvent) -> tuple[str, dict[str, Any]]:
    """The name of `event` and its data."""
    match event:
        case TextDelta(text):
            return TEXT, {"delta": text}
        case ReasoningDelta(text):
            return REASONING, {"delta": text}
        case TurnStarted(turn_id, session_id):
            return "control", {"type": "turn", "status": "started", "turnId": turn_id, "sessionId": session_id}
        case MessageFinished():
            return "message", _message(event)
        case ToolStep(status, call, server, number, details):
            return "control", {"type": "tool", "status": status, **_of_call(call, server, number), **details}
        case ApprovalStep(status, call, server, number, details):
            return "control", {"type": "approval", "status": status, **_of_call(call, server, number), **details}
        case RoundComplete(number):
            return "control", {"type": "tools", "status": "complete", "round": number}
        case Reset(reason, told):
            return RESET, {
                "reason": reason,
                "told": [dict(zip(("event", "data"), encode(e), strict=True)) for e in told],
            }
        case TurnFailed(code, message):
            return "error", {"code": code, "message": message}
        case Done(turn_id, reason, usage, ttft_ms, model):
            spent = {"usage": usage_view(usage), "ttftMs": ttft_ms}
            return DONE, {"reason": reason, **spent, "turnId": turn_id} | ({"model": model} if model else {})


def usage_view(usage: Usage) -> dict[str, int]:
    """Usage as the protocol shows it."""
    return {"inputTokens": usage.input_tokens, "outputTokens": usage.output_tokens}


def _of_call(call: ToolCall, server: str, round_number: int) -> dict[str, Any]:
    return {
        "toolName": call.tool_name,
        "server": server,
        "toolCallId": call.tool_call_id,
        "correlationId": call.correlation_id,
        "round": round_number,
    }


def _message(event: MessageFinished) -> dict[str, Any]:
    data: dict[str, Any] = {"messageId": event.message_id, "role": "assistant", "content": event.message.content}
    if event.message.tool_calls:
        data["toolCalls"] = [
            {"toolCallId": call.tool_call_id, "correlationId": call.correlation_id, "toolName": call.tool_name}
            for call in event.message.tool_calls
        ]
    return data
