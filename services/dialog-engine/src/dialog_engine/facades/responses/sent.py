"""What the client of a response is sent, and the output items that it has by then. Pure."""

from typing import Any

import msgspec

from dialog_engine.chat.events import Frame
from dialog_engine.facades.encoder import Numbers, Output

Json = dict[str, Any]


class Sent:
    """The events of one response. Nothing is sent before it has `begun`."""

    def __init__(self) -> None:
        self.begun = False
        self._numbers = Numbers()
        self._outputs: list[Output] = []
        self._items: dict[int, Json] = {}
        """What the response has, by place."""
        self._places = 0

    @property
    def items(self) -> list[Json]:
        """What the response has: items that are complete, and calls that run."""
        return [self._items[place] for place in sorted(self._items)]

    def follow(self, frame: Frame) -> list[Output]:
        """What is sent from now on follows from this event. Returns the list in which it will be."""
        self._numbers.read(frame)
        self._outputs = []
        return self._outputs

    def begin(self) -> None:
        """The response begins."""
        self.begun = True
        self._items, self._places = {}, 0

    def added(self, item: Json, kept: Json | None = None) -> int:
        """An item begins. Returns its place. `kept` is in the response already."""
        place, self._places = self._places, self._places + 1
        if kept is not None:
            self._items[place] = kept
        self.event("response.output_item.added", apart=True, output_index=place, item=item)
        return place

    def done(self, place: int, item: Json) -> None:
        """An item is complete."""
        self._items[place] = item
        self.event("response.output_item.done", apart=True, output_index=place, item=item)

    def take_back(self, place: int) -> None:
        """An item is not in the response any more."""
        del self._items[place]

    def put_back(self, place: int, item: Json) -> None:
        """An item that was taken back is in the response again."""
        self._items[place] = item

    def event(self, kind: str, *, last: bool = False, apart: bool = False, **fields: Any) -> None:
        """One event of this type. `last`: the response ends with it. `apart` is as for `Numbers.next`."""
        if self.begun:
            number = self._numbers.next(apart=apart)
            data = msgspec.json.encode({"type": kind, **fields, "sequence_number": number})
            self._outputs.append(Output(number, b"event: %s\ndata: %s\n\n" % (kind.encode(), data), last))

    def piece(self, before: str, piece: str) -> None:
        """A piece of a text, which is the inside of a JSON string, behind the beginning of its event."""
        if self.begun:
            number = self._numbers.next()
            data = f'{before}{piece}","sequence_number":{number}}}\n\n'.encode()
            self._outputs.append(Output(number, data))
