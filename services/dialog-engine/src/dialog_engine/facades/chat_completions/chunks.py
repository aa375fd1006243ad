"""The encoder of Chat Completions: a turn as the chunks of one completion, or of several: one ends where only calls of
the client's tools are open, and another begins with their results.

Clients cannot take text back. What another engine has lost of an answer is compared with what it says instead: the
stream goes on where both are the same, and otherwise ends with an error.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import Frame
from dialog_engine.facades.encoder import Encoder, Numbers, Output, data_of, delta_of, text_of
from dialog_engine.facades.openai.objects import created, error_object
from dialog_engine.facades.usage import of_completion

END = b"data: [DONE]\n\n"
_GAP = r"\n\n"
"""Between the texts before and after tool calls, which are one text for clients; the inside of a JSON string."""
_BEGINNING = {"role": "assistant", "content": ""}
FINISH = {"length": "length", "content_filter": "content_filter"}
"""The `finish_reason` for these reasons; "stop" for the others."""


class Steps(StrEnum):
    """How much of our tool calls, and of the model's reasoning, is in `reasoning_content`."""

    OFF = "off"
    REASONING = "reasoning"
    DETAILS = "details"
    """With the arguments and results of calls."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a client has asked for. `page` is where people decide about calls; '' where that is not known."""

    model: str
    steps: Steps = Steps.REASONING
    usage: bool = False
    page: str = ""


def completion_id(turn_id: str) -> str:
    """The id of the completion of a turn."""
    return f"chatcmpl-{turn_id}"


def client_call(step: Mapping[str, Any]) -> dict[str, Any]:
    """A call that the client runs. Its id is the correlation id: those of providers are not unique."""
    function = {"name": step["toolName"], "arguments": msgspec.json.encode(step["arguments"]).decode()}
    return {"id": step["correlationId"], "type": "function", "function": function}


class ChunkEncoder(Encoder):
    """Encodes one turn for one request."""

    def __init__(self, form: Form) -> None:
        self._form = form
        self._numbers = Numbers()
        self._head: dict[str, Any] = {}
        self._before = {events.TEXT: "", events.REASONING: ""}
        """What is sent before a piece of each kind."""
        self._answer = _Answer()
        self._steps = CallSteps(form, "")
        self._client_calls: dict[str, Mapping[str, Any]] = {}
        """The first steps of the calls of the client's tools, by correlation id."""
        self._is_between = False
        """Whether the completion has ended with such calls, and another one has not begun."""

    def feed(self, frame: Frame) -> Iterable[Output]:
        between, self._is_between = self._is_between, False
        self._numbers.read(frame)
        data, last = self._encoded(frame)
        if between and data:
            data = self._chunk(_BEGINNING) + data
        elif between:
            self._is_between = True
        return (Output(self._numbers.next(), data, last),) if data else ()

    def _encoded(self, frame: Frame) -> tuple[bytes, bool]:
        match frame.name:
            case events.TEXT:
                return self._text(self._answer.piece(delta_of(frame)))
            case events.REASONING:
                return self._piece(events.REASONING, delta_of(frame)) if self._form.steps != Steps.OFF else b"", False
            case events.MESSAGE:
                return self._text(self._answer.finished(data_of(frame)["content"]))
            case events.RESET:
                return self._reset(data_of(frame)["events"])
            case events.ERROR:
                data = data_of(frame)
                return _event({"error": error_object(data["message"], data["code"].lower())}), True
            case events.DONE:
                return self._done(data_of(frame))
            case events.WITHDRAWN:
                return _event({"error": error_object("the message was withdrawn", "message_withdrawn")}), True
            case _:
                data = data_of(frame)
                if data["type"] == "waiting" and data.get("clientCalls", 0) == len(data["calls"]):
                    return self._calls(data), True
                return self._control(data), False

    def _control(self, data: dict[str, Any]) -> bytes:
        if data["type"] == "turn":
            return b"" if self._head else self._begun(data["turnId"])
        if data.get("waitsFor") == "client":
            self._client_calls[data["correlationId"]] = data
        if data.get("correlationId") in self._client_calls:
            return b""
        return self._reasoned(self._steps.said(data))

    def _calls(self, waiting: Mapping[str, Any]) -> bytes:
        """The calls that the client runs, as the end of a completion."""
        steps = [self._client_calls[each] for each in waiting["calls"]]
        calls = [{"index": place, **client_call(step)} for place, step in enumerate(steps)]
        self._is_between = True
        self._answer.goes_on_elsewhere()
        return self._chunk({"tool_calls": calls}) + self._chunk({}, "tool_calls") + self._usage(waiting) + END

    def _begun(self, turn_id: str) -> bytes:
        self._steps = CallSteps(self._form, turn_id)
        kind, model = "chat.completion.chunk", self._form.model
        self._head = {"id": completion_id(turn_id), "object": kind, "created": created(turn_id), "model": model}
        beginning = msgspec.json.encode(self._head)[:-1].decode()
        for name, field in ((events.TEXT, "content"), (events.REASONING, "reasoning_content")):
            self._before[name] = f'data: {beginning},"choices":[{{"index":0,"delta":{{"{field}":"'
        return self._chunk(_BEGINNING)

    def _text(self, piece: str | None) -> tuple[bytes, bool]:
        if piece is None:
            text = "the answer was lost with the engine that gave it, and goes on differently: ask for it again"
            return _event({"error": error_object(text, "answer_lost")}), True
        return self._piece(events.TEXT, piece) if piece else b"", False

    def _piece(self, kind: str, piece: str) -> bytes:
        return f'{self._before[kind]}{piece}"}},"finish_reason":null}}]}}\n\n'.encode()

    def _reasoned(self, text: str) -> bytes:
        return self._piece(events.REASONING, _inside(text)) if text else b""

    def _reset(self, replayed: list[dict[str, Any]]) -> tuple[bytes, bool]:
        self._answer.reset()
        sent = b""
        for each in replayed:
            if each["event"] == events.MESSAGE:
                data, last = self._text(self._answer.finished(each["data"]["content"]))
                sent += data
                if last:
                    return sent, True
            elif each["event"] == "control":
                sent += self._control(each["data"])
        return sent, False

    def _done(self, done: dict[str, Any]) -> tuple[bytes, bool]:
        if done["reason"] in ("cancelled", "error"):
            return _event({"error": error_object("the answer was stopped", "turn_cancelled")}), True
        return self._chunk({}, FINISH.get(done["reason"], "stop")) + self._usage(done) + END, True

    def _usage(self, event: Mapping[str, Any]) -> bytes:
        """The chunk with the usage that an event says, if it was asked for."""
        if not self._form.usage or "usage" not in event:
            return b""
        return _event({**self._head, "choices": [], "usage": of_completion(event["usage"])})

    def _chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        return _event({**self._head, "choices": [{"index": 0, "delta": delta, "finish_reason": finish}]})


class _Answer:
    """The text that a client has got. Pieces are the insides of JSON strings."""

    def __init__(self) -> None:
        self._shown: list[str] = []
        """The pieces of the message that is not finished."""
        self._lost = ""
        """What of it was sent and is not in the log any more, as far as it was not said again."""
        self._finished = self._known = 0
        """How many messages are finished, and how many are known to the client of those that a reset says again."""
        self._gap = ""

    def piece(self, piece: str) -> str | None:
        """What is to be sent for a piece of text; None when it contradicts what was sent."""
        if self._lost:
            text, lost = text_of([piece]), self._lost
            self._lost = lost[len(text) :]
            self._shown.append(piece)
            if not text.startswith(lost) and not lost.startswith(text):
                return None
            return _inside(text[len(lost) :])
        gap, self._gap = self._gap, ""
        self._shown.append(piece)
        return gap + piece

    def finished(self, content: str) -> str | None:
        """What is missing of a message that is finished; None when that contradicts what was sent."""
        if self._known > self._finished:
            self._finished += 1
            return ""
        shown = text_of(self._shown)
        rest = content[len(shown) :] if content.startswith(shown) else ""
        sent = self.piece(_inside(rest)) if rest else ""
        sent = None if self._lost else sent
        self._shown.clear()
        self._lost = ""
        self._finished += 1
        self._known = max(self._known, self._finished)
        self._gap = _GAP if content else self._gap
        return sent

    def goes_on_elsewhere(self) -> None:
        """What follows is another text for the client."""
        self._gap = ""

    def reset(self) -> None:
        """The log begins again with what is committed."""
        self._lost = text_of(self._shown) + self._lost
        self._shown.clear()
        self._known, self._finished = max(self._known, self._finished), 0


class CallSteps:
    """What is shown to people about tool calls."""

    def __init__(self, form: Form, turn_id: str) -> None:
        self._form = form
        self._turn_id = turn_id
        self._shown: dict[str, str] = {}
        """The last state of each call that was shown, by correlation id."""

    def said(self, step: Mapping[str, Any]) -> str:
        """What follows from a step of a call; '' for nothing that is new."""
        text, state = self._text(step)
        if not text or self._shown.get(step["correlationId"]) == state:
            return ""
        self._shown[step["correlationId"]] = state
        return text

    def _text(self, step: Mapping[str, Any]) -> tuple[str, str]:
        name, state = step.get("toolName", ""), f"{step['type']} {step.get('status')}"
        match step["type"], step.get("status"):
            case "approval", "asked":
                return f"{name} waits for approval: {self._decided_at('approvals', step['correlationId'])}\n", state
            case "question", "asked":
                number = step["questionId"]
                return f"{name} asks a question: {self._decided_at('questions', number)}\n", f"{state} {number}"
            case "tool", "pending" | "queued" | "running" if self._form.steps != Steps.OFF:
                known = self._shown.get(step["correlationId"], "")
                return (self._called(name, step), "called") if not known else ("", "")
            case "tool", "progress":
                return "", ""
            case "tool", status if self._form.steps != Steps.OFF:
                return self._ended(name, status, step), state
            case _:
                return "", ""

    def _decided_at(self, what: str, number: str) -> str:
        return f"decide at {self._form.page or f'/v1/turns/{self._turn_id}/{what}/{number}'}"

    def _called(self, name: str, step: Mapping[str, Any]) -> str:
        if self._form.steps is not Steps.DETAILS or "arguments" not in step:
            return f"{name} is called\n"
        return f"{name} is called: {msgspec.json.encode(step['arguments']).decode()}\n"

    def _ended(self, name: str, status: object, step: Mapping[str, Any]) -> str:
        why = f": {step['error']['message']}" if "error" in step else ""
        result = step.get("result", {}).get("text", "") if self._form.steps is Steps.DETAILS else ""
        return f"{name} {status}{why}\n" + (f"{result}\n" if result else "")


def _event(data: dict[str, Any]) -> bytes:
    return b"data: " + msgspec.json.encode(data) + b"\n\n"


def _inside(text: str) -> str:
    """A text as the inside of a JSON string."""
    return msgspec.json.encode(text).decode()[1:-1]
