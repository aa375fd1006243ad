"""The encoder of the Vercel AI SDK, versions 5 to 7.

A turn is one message of the assistant, whose id is that of the turn; a round is a step of it. The stream of a request
ends when calls wait for approval, or for the page that runs them, and goes on with the same message when the client has
posted what its user said, or what its tools have returned.
"""

from collections.abc import Iterable
from typing import Any, Literal

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import Frame
from dialog_engine.facades.ai_sdk.calls import Calls
from dialog_engine.facades.ai_sdk.types import AskedName, Chunk, Data, FinishReason
from dialog_engine.facades.encoder import Encoder, Numbers, Output, data_of, delta_of, text_of
from dialog_engine.facades.usage import of_ui_message

Version = Literal[5, 6, 7]
VERSION: Version = 6
"""The version that is taken for a request that names none."""
ASKS_SINCE = 6
"""The first version in which people approve calls."""
DETAILS_SINCE = 6
"""The first version whose usage has the details in objects of their own."""
RESETS_SINCE = 7
"""The first version in which a step can be taken back."""
DONE = b"data: [DONE]\n\n"

_METADATA = ("model", "reason")
_FINISH: dict[str, FinishReason] = {"stop": "stop", "length": "length", "content_filter": "content-filter"}


def encoded(chunk: Chunk) -> bytes:
    """The chunk as an event of the stream."""
    return b"data: " + msgspec.json.encode(chunk) + b"\n\n"


class AiSdkEncoder(Encoder):
    """Encodes one turn for clients of one version."""

    def __init__(self, version: Version) -> None:
        self._version: Version = version
        self._numbers = Numbers()
        self._ids = {"turnId": "", "sessionId": ""}
        self._message = _Message(version)
        self._calls = Calls(answers=version >= RESETS_SINCE)
        self._failed = False

    def feed(self, frame: Frame) -> Iterable[Output]:
        self._numbers.read(frame)
        if frame.name in (events.TEXT, events.REASONING):
            data = self._message.delta(frame.name, delta_of(frame))
            return (Output(self._numbers.next(), data),)
        data, last = self._event(frame.name, data_of(frame))
        return (Output(self._numbers.next(), data, last),) if data else ()

    def _event(self, name: str, data: dict[str, Any]) -> tuple[bytes, bool]:
        """What follows from an event, and whether the stream ends behind it."""
        match name, data.get("type"):
            case "control", "turn":
                self._ids = {"turnId": data["turnId"], "sessionId": data["sessionId"]}
                self._message.turn_id = data["turnId"]
                return self._message.opened(self._ids), False
            case "control", "waiting" if self._asks_client(data):
                return self._ended(b"", "tool-calls"), True
            case "control", "approval" if self._version < ASKS_SINCE:
                return self._said([self._asked("data-approval", "approvals", data["correlationId"], data)]), False
            case "control", "tool" | "approval":
                return self._said(self._calls.step(data)), False
            case "control", "question":
                return self._said([self._asked("data-question", "questions", data["questionId"], data)]), False
            case events.MESSAGE, _:
                return self._message.finished(data["content"]), False
            case events.RESET, _:
                return self._reset(data["events"]), False
            case events.ERROR, _:
                self._failed = True
                return self._said([{"type": "error", "errorText": data["message"]}]), False
            case events.WITHDRAWN, _:
                self._message.turn_id = data["turnId"]
                return self._ended(encoded({"type": "abort"}), "other"), True
            case events.DONE, _:
                return self._done(data), True
            case _:
                return b"", False

    def _asks_client(self, waiting: dict[str, Any]) -> bool:
        """Whether the next request has what the turn waits for: results of the page's tools, or approvals."""
        return bool(waiting.get("clientCalls") or (waiting["approvals"] and self._version >= ASKS_SINCE))

    def _asked(self, name: AskedName, path: str, part_id: str, data: dict[str, Any]) -> Data:
        """What people are asked that the protocol has no chunk for, and where to answer."""
        url = f"/v1/turns/{self._message.turn_id}/{path}/{part_id}"
        return Data(type=name, id=part_id, data={**data, "answerUrl": url})

    def _said(self, chunks: Iterable[Chunk]) -> bytes:
        """Chunks that stand between the parts of the message."""
        data = b"".join(map(encoded, chunks))
        return self._message.beginning() + self._message.closed() + data if data else b""

    def _reset(self, replayed: list[dict[str, Any]]) -> bytes:
        """What was shown of an uncommitted message is taken back, or stays; what is new of the rest follows."""
        data = [self._message.taken_back()]
        known = self._message.count
        self._message.count = 0
        for each in replayed:
            name, event = each["event"], each["data"]
            if name == events.MESSAGE and self._message.count < known:
                self._message.count += 1
            elif name != events.REASONING:
                data.append(self._event(name, event)[0])
            elif self._message.count >= known:
                piece = msgspec.json.encode(event["delta"]).decode()[1:-1]
                data.append(self._message.delta(name, piece))
        return b"".join(data)

    def _done(self, done: dict[str, Any]) -> bytes:
        aborted = encoded({"type": "abort"}) if done["reason"] == "cancelled" else b""
        metadata = self._ids | {name: done[name] for name in _METADATA if name in done}
        metadata["usage"] = self._usage(done["usage"])
        if "models" in done:
            metadata["models"] = {name: self._usage(each) for name, each in done["models"].items()}
        reason = "error" if self._failed else _FINISH.get(done["reason"], "other")
        return self._ended(aborted, reason, metadata)

    def _usage(self, used: dict[str, Any]) -> dict[str, Any]:
        return of_ui_message(used, flat=self._version < DETAILS_SINCE)

    def _ended(self, before: bytes, reason: FinishReason, metadata: dict[str, Any] | None = None) -> bytes:
        data = self._message.beginning() + self._message.step_closed() + before
        finish = encoded({"type": "finish", "finishReason": reason, "messageMetadata": metadata or self._ids})
        self._message.is_open = False
        return data + finish + DONE


class _Message:
    """The message of the turn: its steps, and its part that is open."""

    def __init__(self, version: Version) -> None:
        self._resets = version >= RESETS_SINCE
        self.turn_id = ""
        self.is_open = False
        """Whether the stream has begun with `start`."""
        self.count = 0
        """How many messages of the model are finished."""
        self._step = False
        self._step_finished = False
        """Whether the model's message of this step is finished: another one is another step."""
        self._part = ""
        self._id = ""
        self._parts = 0
        self._shown: list[str] = []
        """The text of the model's message so far, as `delta_of` returns it."""
        self._has_parts = False
        """Whether the model's message that is not finished has parts."""
        self._before = b""

    def opened(self, metadata: dict[str, Any]) -> bytes:
        """The beginning of the stream, unless it has begun."""
        if self.is_open:
            return b""
        self.is_open = True
        return encoded({"type": "start", "messageId": self.turn_id, "messageMetadata": metadata})

    def beginning(self) -> bytes:
        """The beginning of the stream, where another stream has had the metadata, unless it has begun."""
        if self.is_open:
            return b""
        self.is_open = True
        return encoded({"type": "start", "messageId": self.turn_id})

    def delta(self, kind: str, piece: str) -> bytes:
        """A piece of text or reasoning."""
        head = b"" if self._part == kind else self._part_begun(kind)
        if kind == events.TEXT:
            self._shown.append(piece)
        return head + self._before + piece.encode() + b'"}\n\n'

    def finished(self, content: str) -> bytes:
        """The model's message is committed with this text."""
        shown = text_of(self._shown)
        data = b""
        if not content.startswith(shown):
            data += self.taken_back()
            shown = ""
        if rest := content[len(shown) :]:
            data += self.delta(events.TEXT, msgspec.json.encode(rest).decode()[1:-1])
        data += self.step_begun() if not self._has_parts else b""
        data += self.closed()
        self._shown.clear()
        self._has_parts, self._step_finished = False, True
        self.count += 1
        return data

    def taken_back(self) -> bytes:
        """Take back what was shown of the message that is not finished, where the version has that."""
        data = b""
        if self._has_parts:
            data = encoded({"type": "reset-step"}) if self._resets else self.closed()
        self._part = ""
        self._shown.clear()
        self._has_parts = False
        return data

    def closed(self) -> bytes:
        """The end of the open part."""
        part, self._part = self._part, ""
        match part:
            case "text":
                return encoded({"type": "text-end", "id": self._id})
            case "reasoning":
                return encoded({"type": "reasoning-end", "id": self._id})
            case _:
                return b""

    def step_begun(self) -> bytes:
        """The beginning of a step for the model's next message, unless it has begun."""
        if self._step and not self._step_finished:
            return self.beginning()
        data = self.beginning() + self.step_closed() + encoded({"type": "start-step"})
        self._step, self._step_finished = True, False
        return data

    def step_closed(self) -> bytes:
        """The end of the open part and the open step."""
        data = self.closed()
        if self._step:
            data += encoded({"type": "finish-step"})
        self._step = False
        return data

    def _part_begun(self, kind: str) -> bytes:
        head = self.closed() + self.step_begun()
        self._parts += 1
        self._part, self._id, self._has_parts = kind, f"{kind}-{self._parts}", True
        self._before = f'data: {{"type":"{kind}-delta","id":"{self._id}","delta":"'.encode()
        is_text = kind == events.TEXT
        return head + encoded({"type": "text-start" if is_text else "reasoning-start", "id": self._id})
