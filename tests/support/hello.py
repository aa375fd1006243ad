"""A question to a model, and how an OpenAI-compatible provider answers it."""

from dialog_engine.model import ChatRequest, FinishReason, StreamEnd, TextDelta, Turn, UserMessage

KEY = "hunter2hunter2"
TURN = Turn("turn", "session", "subject")
REQUEST = ChatRequest((UserMessage("Hi"),), TURN)
HELLO = [
    b'data: {"choices":[{"delta":{"content":"Hel"}}]}\n\n',
    b'data: {"choices":[{"delta":{"content":"lo"},"finish_reason":"stop"}]}\n\n',
    b"data: [DONE]\n\n",
]
HELLO_EVENTS = [TextDelta("Hello"), StreamEnd(FinishReason.STOP)]
