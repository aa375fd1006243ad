"""The clients of aiohttp within the bound of interim responses, of which aiohttp discards any number.

Of 10,000 that have arrived together it makes as many responses, between two turns of the loop: in a fifth of a second.
"""

from typing import Any, cast

import aiohttp.connector
from aiohttp.client_proto import ResponseHandler
from aiohttp.http_exceptions import HttpProcessingError

from callstream_runtime.unpacking import MAX_INTERIM, TOO_MANY_INTERIM

READ_BYTES = 16 * 1024
"""How much is parsed at once."""


class BoundedResponses(ResponseHandler):
    """A connection that ends, with an error for its request, after MAX_INTERIM interim responses."""

    _interim = 0

    def data_received(self, data: bytes) -> None:
        """Parse what has arrived, in parts."""
        for at in range(0, len(data) or 1, READ_BYTES):
            if self._interim <= MAX_INTERIM:
                super().data_received(data[at : at + READ_BYTES])

    def feed_data(self, data: tuple[Any, Any], size: int = 0) -> None:
        """Take the head of a response."""
        code: int = data[0].code
        self._interim = self._interim + 1 if code < 200 and code != 101 else 0
        if self._interim <= MAX_INTERIM:
            super().feed_data(data, size)
        elif self._interim == MAX_INTERIM + 1 and self.transport is not None:
            self.set_exception(HttpProcessingError(code=code, message=TOO_MANY_INTERIM))
            self.transport.close()


def bound_interim_responses() -> None:
    """Bound them in every client of aiohttp that is created from now on."""
    cast("Any", aiohttp.connector).ResponseHandler = BoundedResponses
