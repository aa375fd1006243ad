"""A client of the Responses API, which reads on behind the last event that it has, whatever breaks, and approves calls.

What it got in pieces is compared with what one reader gets at once: nothing is missing, and nothing comes twice.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from openai import OpenAI, omit
from openai.types.responses import ResponseStreamEvent

from dialog_engine.facades.encoder import EPOCH_SHIFT, REBUILT
from dialog_engine.facades.responses.ids import response_id
from plugins_contract.messages import new_id
from tests.chaos.foreign_clients import BROKEN, MODEL, PAUSE_SECONDS, READ_SECONDS, Asked, End, Ports, sdk
from tests.chaos.model import Order
from tests.chaos.tools import SERVER

REQUESTS = 5
"""With approvals, for one question, at most."""
MARKED = 0b11 << 30
"""In numbers of a reader that lacks a part of the log: another one may get something else."""
APPROVING: Any = [{"type": "mcp", "server_label": SERVER, "require_approval": "always"}]
"""Every call of the server waits for its user."""


@dataclass
class Read:
    """One response: its id, and its events by number as they came."""

    id: str = ""
    events: dict[int, ResponseStreamEvent] = field(default_factory=dict[int, ResponseStreamEvent])
    begun: list[str] = field(default_factory=list[str])
    """The ids of its items."""
    taken_back: set[str] = field(default_factory=set[str])
    """Those of items that are incomplete."""
    final: Any = None
    skipped: bool = False
    """Whether the client got the end only of what it lacked at last: the rest cannot be read any more, or not now."""

    @property
    def text(self) -> str:
        """Of the response that it has in the end, or of the items that were not taken back."""
        if self.final is not None:
            return self.final.output_text
        return "".join(self._text(each) for each in self.begun if each not in self.taken_back)

    @property
    def said(self) -> tuple[str, list[str]]:
        """The text that the response has in the end, and its requests for approval."""
        requests = [item.id for item in self.final.output if item.type == "mcp_approval_request"]
        return self.final.output_text, requests

    def take(self, event: ResponseStreamEvent) -> None:
        """Take the next event."""
        self.events[event.sequence_number] = event
        match event.type:
            case "response.created":
                self.id = event.response.id
            case "response.output_item.added":
                self.begun.append(event.item.id or "")
            case "response.output_item.done" if getattr(event.item, "status", "") == "incomplete":
                self.taken_back.add(event.item.id or "")
            case "response.completed" | "response.incomplete" | "response.failed":
                self.final = event.response
            case _:
                pass

    def mistakes(self) -> Iterator[str]:
        """What came twice, or not at all, by what the response has in the end."""
        if len(self.begun) != len(set(self.begun)):
            yield f"an item of {self.id} has begun twice: {self.begun}"
        for item in self.final.output:
            if item.type != "message":
                continue
            got, whole = self._text(item.id), "".join(part.text for part in item.content)
            if not (whole.startswith(got) if self.skipped else got == whole):
                yield f"the client has {got!r} of {item.id}, which is {whole!r}"

    def _text(self, item_id: str) -> str:
        events = self.events.values()
        return "".join(e.delta for e in events if e.type == "response.output_text.delta" and e.item_id == item_id)


@dataclass
class Responses:
    """The package `openai`: every other question wants its calls approved."""

    ports: Ports
    gap: str = ""
    last: str = ""
    """The id of the last response."""
    questions: int = 0

    def ask(self, order: Order) -> Asked:
        asked = Asked(order, streams=0)
        self.questions += 1
        said: Any = str(order)
        request = {"tools": APPROVING if self.questions % 2 else omit, "previous_response_id": self.last or omit}
        headers = {"Idempotency-Key": new_id()}
        response = self._read(asked, {"input": said, "extra_headers": headers, **request})
        while wanted := self._taken(asked, response):
            said = [{"type": "mcp_approval_response", "approval_request_id": each, "approve": True} for each in wanted]
            asked.continued += 1
            response = self._read(asked, {"input": said})
        self.last = response.id or response_id(asked.turn_id)
        return asked

    def _taken(self, asked: Asked, response: Read) -> list[str]:
        """Take what was read. Returns the requests for approval that the response ends with: an engine that dies
        between two decisions asks again for the second."""
        asked.text += response.text
        if response.final is None or asked.continued == REQUESTS:
            return []
        asked.mistakes += response.mistakes()
        self._compare(asked, response)
        return [each.id for each in response.final.output if each.type == "mcp_approval_request"]

    def _read(self, asked: Asked, request: dict[str, Any]) -> Read:
        """Read one response to its end, from one connection after the other, for so many seconds."""
        response, until = Read(), time.monotonic() + READ_SECONDS
        while response.final is None and (time.monotonic() < until or not asked.turn_id):
            asked.streams += 1
            with sdk(self.ports) as client:
                try:
                    self._read_on(client, asked, response, request)
                except BROKEN:
                    asked.end = End.BROKEN
                    time.sleep(PAUSE_SECONDS)
                else:
                    asked.end = End.WHOLE if response.final else End.ORDERLY
            if asked.end is End.ORDERLY:
                break
        return response

    def _read_on(self, client: OpenAI, asked: Asked, response: Read, request: dict[str, Any]) -> None:
        if response.id:
            after = max(response.events)
            stream = client.responses.retrieve(response.id, stream=True, starting_after=after)
        else:
            after = 0
            stream = client.responses.create(model=MODEL, stream=True, background=True, **request)
            asked.turn_id, asked.session_id = (stream.response.headers[f"x-{each}-id"] for each in ("turn", "session"))
        response.skipped = reads_on = bool(response.id)
        for number, event in enumerate(stream):
            asked.read_on += reads_on and number == 0
            response.take(event)
            response.skipped = response.skipped and response.final is not None
            if event.sequence_number <= after and not response.skipped:
                asked.mistakes.append(f"event {event.sequence_number} of {response.id} came behind {after}")
            after = event.sequence_number

    def _compare(self, asked: Asked, response: Read) -> None:
        """With what one reader gets at once, at any engine; not where a log was lost, nor while engines are killed."""
        whole = Read()
        try:
            with sdk(self.ports) as client:
                for event in client.responses.retrieve(response.id, stream=True):
                    whole.take(event)
        except BROKEN:
            return
        numbers = {*response.events, *whole.events}
        is_marked = any(number & MARKED or number >> EPOCH_SHIFT >= REBUILT for number in numbers)
        if is_marked or response.skipped or not whole.final:
            return
        asked.compared += 1
        last_epoch, mine_ended = max(numbers) >> EPOCH_SHIFT, max(response.events) >> EPOCH_SHIFT
        if response.said != whole.said:
            asked.mistakes.append(f"the end of {response.id} is {response.said}, for another reader {whole.said}")
        for number in sorted(numbers):
            mine, theirs = response.events.get(number), whole.events.get(number)
            epoch = number >> EPOCH_SHIFT
            was_lost = theirs is None and epoch < last_epoch  # with the engine that had sent it
            is_again = mine is None and epoch > mine_ended  # the end of the response was lost like that
            if mine != theirs and not was_lost and not is_again:
                asked.mistakes.append(f"event {number} of {response.id} is {mine}, for another reader {theirs}")
