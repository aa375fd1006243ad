"""What a server asks in the middle of a call by requests of its own, as servers did before 2026-07-28.

While a person is asked the call stays open, but it has no slot at its server, and no time of it passes.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import cast

from mcp import MCPError
from mcp.client import ClientRequestContext
from mcp.types import INVALID_REQUEST, URL_ELICITATION_REQUIRED, ElicitRequestParams, ElicitResult, ErrorData

from plugins_contract.messages import ToolCallRequested
from plugins_contract.outcomes import CallProgress
from plugins_contract.questions import InputRequired, NextRound
from plugins_mcp.mcp.calls import InputAsked, Rejected, SendState, current_call
from plugins_mcp.mcp.questions import KEY, addresses_required, asked_in_call
from plugins_mcp.mcp.redaction import redacted
from plugins_mcp.mcp.spec import ServerSpec

MAX_UNVISITED = 1_000
"""How many addresses that people are to visit a session remembers."""
_CANCELLED = ElicitResult(action="cancel")
_NOT_ANSWERED = ErrorData(code=INVALID_REQUEST, message="Elicitation not supported: whoever wants this cannot be asked")


class Slot:
    """The slot of one call at its server, and the times that pass while it has one. Both stop while it is `paused`."""

    def __init__(self, slots: asyncio.Semaphore, total: asyncio.Timeout) -> None:
        """`total` bounds the whole call."""
        self.held = False
        self.paused = False
        self.paused_s = 0.0
        """For how many seconds people were asked."""
        self._slots = slots
        self._total = total
        self._idle: tuple[asyncio.Timeout, float] | None = None
        self._seconds_left = 0.0
        self._paused_at = 0.0

    def idles(self, timeout: asyncio.Timeout, limit: float) -> None:
        """`timeout` ends the call `limit` seconds after its last progress."""
        self._idle = (timeout, limit)

    async def take(self) -> None:
        """Wait for the slot."""
        self.held = await self._slots.acquire()

    def give_back(self) -> None:
        """Let another call have it."""
        if self.held:
            self.held = False
            self._slots.release()

    def pause(self) -> None:
        """Give it back, and stop the clock: a person is asked."""
        self.give_back()
        self.paused = True
        with suppress(RuntimeError):  # its time is over
            self._paused_at, end = asyncio.get_running_loop().time(), self._total.when()
            self._seconds_left = max(0.0, (end or 0.0) - self._paused_at)
            self._total.reschedule(None)
            if self._idle is not None:
                self._idle[0].reschedule(None)

    async def take_again(self, seconds: float) -> None:
        """Wait for the slot for `seconds` at most; the call may take as long from then on. Raises TimeoutError."""
        async with asyncio.timeout(seconds):
            await self.take()
        self._seconds_left = seconds

    def restart_clock(self) -> None:
        """The server does not wait for a person any more."""
        self.paused = False
        with suppress(RuntimeError):  # the call has ended
            now = asyncio.get_running_loop().time()
            self.paused_s += now - self._paused_at
            self._total.reschedule(now + self._seconds_left)
            if self._idle is not None:
                self._idle[0].reschedule(now + self._idle[1])


class Dialogue:
    """The questions of one call, one at a time.

    Whoever made the call waits for its end or for `asked`, and calls `go_on` with what people say.
    """

    def __init__(self, number: int, report: Callable[[CallProgress], None], visited: Callable[[int], None]) -> None:
        """`number` is that of the round. `report` takes the progress of the call. `visited` is called with the round
        when the server says that every address was visited which it wanted visited in it."""
        self.number = number
        self.asked: asyncio.Future[InputAsked | Rejected] = asyncio.get_running_loop().create_future()
        self.slot: Slot | None = None
        """Set once the call has one."""
        self._report = report
        self._all_visited = visited
        self._unvisited = set[str]()
        self._one = asyncio.Lock()
        self._answer: asyncio.Future[ElicitResult] | None = None
        self._closed = False
        self._gone_on = asyncio.Event()
        self._gone_on.set()
        """Clear from a question on until `go_on`."""
        self.taken_back: Callable[[], None] = lambda: None
        """Called when the server does not wait any more for the answer that a person is asked for."""

    @classmethod
    def of(
        cls, request: ToolCallRequested, report: Callable[[CallProgress], None], visited: Callable[[str, int], None]
    ) -> "Dialogue":
        """The dialogue of a call. `visited` is called with the id of its request, and the round."""
        number = request.next_round.number if request.next_round else 1
        return cls(number, report, partial(visited, request.correlation_id))

    @property
    def waits(self) -> bool:
        """Whether the server waits for an answer."""
        return self._answer is not None and not self._answer.done()

    def progressed(self, progress: CallProgress) -> None:
        """The server reports progress."""
        self._report(progress)

    async def ask(
        self, params: ElicitRequestParams, said: Callable[[ElicitRequestParams, int], InputAsked | Rejected]
    ) -> ElicitResult:
        """Have a person asked. `said` is what is asked, or why it is not, in that round.

        A server that does not wait any more cancels this; the call goes on.
        """
        async with self._one:
            await self._gone_on.wait()  # until nobody is asked any more what the server took back
            if self._closed:
                return _CANCELLED
            self._gone_on.clear()
            answer = self._answer = asyncio.get_running_loop().create_future()
            if self.slot is not None:
                self.slot.pause()
            self.asked.set_result(said(params, self.number))
            try:
                return await answer
            except asyncio.CancelledError:
                self.taken_back()
                raise
            finally:
                if self.slot is not None:
                    self.slot.restart_clock()

    async def go_on(self, brings: NextRound, report: Callable[[CallProgress], None], seconds: float) -> None:
        """Give the server an answer, once the call has a slot again; it may take `seconds` from then on.

        An answer that the server does not wait for any more is dropped. Raises TimeoutError.
        """
        self.number, self._report = brings.number, report
        self.asked = asyncio.get_running_loop().create_future()
        if self.waits and self.slot is not None:
            await self.slot.take_again(seconds)
        if self._answer is not None and not self._answer.done():
            said = brings.responses.get(KEY)
            self._answer.set_result(ElicitResult.model_validate(said) if said else _CANCELLED)
        self._gone_on.set()

    def close(self) -> None:
        """Answer what is asked, and all that follows, with `cancel`."""
        self._closed = True
        self._gone_on.set()
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(_CANCELLED)

    def wants_visited(self, required: InputRequired) -> None:
        """The server takes the call once these addresses were visited."""
        self._unvisited = {each.key for each in required.questions}

    def visited(self, elicitation_id: str) -> None:
        """The server says that one of them was."""
        if elicitation_id in self._unvisited:
            self._unvisited.discard(elicitation_id)
            if not self._unvisited:
                self._all_visited(self.number)


class OwnQuestions:
    """What a server asks by itself in one session. `calls` are those in progress there."""

    def __init__(self, spec: ServerSpec) -> None:
        self.calls = set[SendState]()
        self._spec = spec
        self._unvisited: dict[str, Dialogue] = {}
        """The calls whose server wants addresses visited first, by its ids of these."""

    async def ask(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        """Have the person asked for whom the server runs the call.

        Over stdio and SSE a question names no call: it is declined unless there is one call only. Where the producer of
        the call cannot be asked, the server gets the error of a client that answers no questions.
        """
        call = current_call.get()
        if call not in self.calls:
            call = next(iter(self.calls)) if len(self.calls) == 1 else None
        if call is None:
            return ElicitResult(action="decline")
        if call.dialogue is None:
            call.asked_in_vain = True
            return _NOT_ANSWERED
        return await call.dialogue.ask(params, self._said)

    def _said(self, params: ElicitRequestParams, number: int) -> InputAsked | Rejected:
        return cast(
            "InputAsked | Rejected", redacted(asked_in_call(params, number, self._spec.options.addresses), self._spec)
        )

    def wanted_first(self, error: Exception, call: SendState) -> InputAsked | Rejected | None:
        """What the server wants visited before it takes the call, of which it has done nothing; None for any other
        error."""
        if not isinstance(error, MCPError) or error.code != URL_ELICITATION_REQUIRED:
            return None
        wanted = addresses_required(error.data, call, self._spec.options.addresses)
        if isinstance(wanted, InputAsked) and call.dialogue is not None:
            call.dialogue.wants_visited(wanted.required)
            self._unvisited |= dict.fromkeys((each.key for each in wanted.required.questions), call.dialogue)
            while len(self._unvisited) > MAX_UNVISITED:
                del self._unvisited[next(iter(self._unvisited))]
        return wanted

    def visited(self, elicitation_id: str) -> None:
        """The server says that an address was visited."""
        if dialogue := self._unvisited.pop(elicitation_id, None):
            dialogue.visited(elicitation_id)
