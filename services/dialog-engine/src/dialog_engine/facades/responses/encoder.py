"""The encoder of the Responses API: a turn as the events of one response.

A turn takes several responses where its calls need approval, or are the client's: a response ends with the requests for
it, or with these calls, and the next one begins with the answer. A response has the output items that follow on the
place where it begins.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dialog_engine.chat import events
from dialog_engine.chat.events import Frame
from dialog_engine.facades.encoder import Encoder, Output, data_of, delta_of, text_of
from dialog_engine.facades.openai.objects import created
from dialog_engine.facades.responses.calls import Calls
from dialog_engine.facades.responses.ids import item_id, response_id
from dialog_engine.facades.responses.parts import Part, inside, part_of
from dialog_engine.facades.responses.sent import Sent
from dialog_engine.facades.responses.shown import show
from dialog_engine.facades.usage import of_response

Json = dict[str, Any]

_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
"""The reason in `incomplete_details` for these reasons of a turn."""


@dataclass(frozen=True, slots=True)
class Form:
    """Which response of a turn is wanted, and what it says of its request. `answered` is the call whose answer, the
    user's or the client's, has begun it, '' for the first response. `listed` are the tools of the servers that the
    request names."""

    turn_id: str
    said: Mapping[str, Any]
    answered: str = ""
    listed: Sequence[Mapping[str, Any]] = ()

    @property
    def shows_reasoning(self) -> bool:
        """Whether the request has asked for what the model reasons."""
        asked: Mapping[str, Any] | None = self.said.get("reasoning")
        return bool(asked and asked.get("summary"))


class ResponseEncoder(Encoder):
    """Encodes one turn for the readers of one response. `document` is the response as it is so far, and `is_over`
    whether it has its last event. With `all_requests` it also has the requests for approval that were decided since."""

    def __init__(self, form: Form, *, all_requests: bool = False) -> None:
        self._form = form
        self._all_requests = all_requests
        self._sent = Sent()
        self.is_over = False
        self._calls = Calls(form.turn_id)
        self._parts = _Parts()
        self._questions: set[str] = set()
        """Those of servers that the client has got."""
        self._failure: Json | None = None
        said = dict(form.said)
        if form.answered:
            said["previous_response_id"] = response_id(form.turn_id)
        self._head: Json = {
            "id": response_id(form.turn_id, form.answered),
            "object": "response",
            "created_at": created(form.turn_id),
            "status": "in_progress",
            "error": None,
            "incomplete_details": None,
            **said,
            "output": [],
            "usage": None,
        }

    @property
    def document(self) -> Json:
        """The response: its items that are complete, and those of calls that run."""
        return self._head | {"output": self._sent.items}

    def feed(self, frame: Frame) -> Sequence[Output]:
        if self.is_over:
            return ()
        outputs = self._sent.follow(frame)
        if not self._sent.begun and not self._form.answered:
            self._begin()
        if frame.name in (events.TEXT, events.REASONING):
            self._delta(frame.name, delta_of(frame))
        else:
            self._event(frame.name, data_of(frame))
        return outputs

    def _event(self, name: str, data: Json) -> None:
        match name, data.get("type"):
            case "control", "tool" | "approval":
                self._step(data)
            case "control", "question" if data["questionId"] not in self._questions and data["status"] == "asked":
                self._questions.add(data["questionId"])
                url = f"/v1/turns/{self._form.turn_id}/questions/{data['questionId']}"
                self._note(f"{data['toolName']} asks a question: answer at {url}")
            case "control", "waiting":
                self._waiting(data)
            case events.MESSAGE, _:
                self._finished(data)
            case events.RESET, _:
                self._reset(data["events"])
            case events.ERROR, _:
                self._failure = {"code": "server_error", "message": data["message"]}
            case events.DONE, _:
                self._done(data)
            case events.WITHDRAWN, _:
                self._end("incomplete", "cancelled")
            case _:
                pass

    # --- The response ---

    def _begin(self) -> None:
        self._sent.begin()
        self._parts.part = None
        self._sent.event("response.created", response=self.document)
        self._sent.event("response.in_progress", response=self.document)
        for listed in () if self._form.answered else self._form.listed:
            label = listed["server_label"]
            item = {"id": item_id("mcpl", self._form.turn_id, label), "type": "mcp_list_tools", "server_label": label}
            place = self._sent.added({**item, "tools": []})
            for state in ("in_progress", "completed"):
                self._sent.event(f"response.mcp_list_tools.{state}", item_id=item["id"], output_index=place)
            self._sent.done(place, {**item, "tools": listed["tools"]})
        for call in self._calls.begin():
            show(self._sent, call)

    def _waiting(self, data: Json) -> None:
        for call in self._calls.waiting(data["calls"]):
            show(self._sent, call)
        self._calls.waited()
        of_client = data.get("clientCalls", 0) == len(data["calls"])
        if (data["approvals"] or of_client) and self._sent.begun:
            self._spent(data)
            self._end("completed", "completed")

    def _done(self, data: Json) -> None:
        self._spent(data)
        reason = data["reason"]
        if self._failure or reason == "error":
            self._head["error"] = self._failure or {"code": "server_error", "message": "the answer has failed"}
            self._end("failed", "failed")
        elif reason == "cancelled":
            self._end("incomplete", "cancelled")
        elif reason in _INCOMPLETE:
            self._head["incomplete_details"] = {"reason": _INCOMPLETE[reason]}
            self._end("incomplete", "incomplete")
        else:
            self._end("completed", "completed")

    def _spent(self, data: Json) -> None:
        """The response ends with the usage of all rounds of its turn so far, which this event says."""
        if used := data.get("usage"):
            self._head["usage"] = of_response(used)

    def _end(self, event: str, status: str) -> None:
        if not self._sent.begun:
            self._begin()
        self._close("incomplete")
        for call in self._calls.shown():
            if not call.is_done:
                self._sent.done(call.place, call.item | {"status": "incomplete"})
        self._head["status"] = status
        self._sent.event(f"response.{event}", last=True, response=self.document)
        self.is_over = True

    # --- Texts ---

    def _delta(self, kind: str, piece: str) -> None:
        parts = self._parts
        if kind == events.REASONING and not self._form.shows_reasoning:
            return
        if not parts.part or parts.part.kind != kind:
            self._close()
            self._open(kind)
        parts.shown.append(piece)
        self._sent.piece(parts.before, piece)

    def _finished(self, message: Json) -> None:
        """The model's message is committed with this text."""
        parts, content = self._parts, message["content"]
        if parts.part and parts.part.kind != events.TEXT:
            self._close()
        shown = text_of(parts.shown) if parts.part else ""
        if not content.startswith(shown):
            self._take_back()
            shown = ""
        if rest := content[len(shown) :]:
            self._delta(events.TEXT, inside(rest))
        self._close(phase="commentary" if message.get("toolCalls") else "final_answer")
        parts.finished += 1

    def _reset(self, replayed: Sequence[Json]) -> None:
        """What was shown of an uncommitted message is incomplete; what is new of the rest follows."""
        self._take_back()
        known, self._parts.finished = self._parts.finished, 0
        for each in replayed:
            name, data = each["event"], each["data"]
            if name == events.MESSAGE and self._parts.finished < known:
                self._parts.finished += 1
            elif name != events.REASONING:
                self._event(name, data)
            elif self._parts.finished >= known:
                self._delta(name, inside(data["delta"]))

    def _open(self, kind: str) -> None:
        parts = self._parts
        parts.opened += 1
        parts.part = part = part_of(kind, item_id(part_of(kind, "").prefix, self._form.turn_id, str(parts.opened)))
        parts.place, parts.shown = self._sent.added(part.item()), []
        self._sent.event(part.added, **part.at(parts.place), part=part.content(""))
        at = {"type": part.delta, **part.at(parts.place), **part.extra, "delta": ""}
        beginning = msgspec.json.encode(at)[: -len('"}')].decode()
        parts.before = f"event: {part.delta}\ndata: {beginning}"

    def _close(self, status: str = "completed", phase: str | None = None) -> None:
        """End the open part, if there is one."""
        part, place = self._parts.part, self._parts.place
        if part is None:
            return
        text, self._parts.part = text_of(self._parts.shown), None
        self._sent.event(part.done, **part.at(place), **part.extra, text=text)
        self._sent.event(part.part_done, **part.at(place), part=part.content(text))
        self._sent.done(place, part.item(text, status, phase))

    def _take_back(self) -> None:
        """The open part is incomplete, and not in the response any more: another one follows."""
        if self._parts.part:
            self._close("incomplete")
            self._sent.take_back(self._parts.place)

    def _note(self, text: str) -> None:
        """A text for people, which is not the model's."""
        self._close()
        self._open(events.REASONING)
        self._parts.shown.append(inside(text))
        self._close()

    # --- Calls ---

    def _step(self, step: Json) -> None:
        is_new = step["correlationId"] not in self._calls.known
        call = self._calls.take(step)
        if not self._sent.begun and step["correlationId"] == self._form.answered and call.is_answered_by(step):
            self._begin()
        is_asked = call.asked is not None and call.asked["id"] == call.shown_request
        if call.shown_request and not is_asked and not self._all_requests:  # a client would answer it once more
            self._sent.take_back(call.requests[call.shown_request])
            call.shown_request = ""
        if is_new if call.by_client else call.asked or step["type"] == "tool":
            show(self._sent, call)


@dataclass(slots=True)
class _Parts:
    """The text or the reasoning that is written."""

    part: Part | None = None
    place: int = -1
    before: str = ""
    """What is sent before a piece of it."""
    shown: list[str] = field(default_factory=list[str])
    """Its pieces, as `delta_of` returns them."""
    opened: int = 0
    """How many there were."""
    finished: int = 0
    """How many messages of the model are committed."""
