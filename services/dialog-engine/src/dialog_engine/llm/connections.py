"""Connections to providers: one HTTP client per SDK client, on aiohttp, the SDKs' faster transport.

Servers send a token as an HTTP chunk of its own. The parser of httpx2's own transport, in Python, makes one read of
each; this one, in C, hands over at once whatever has come.
"""

import httpx2
from openai import DefaultAioHttpClient

from dialog_engine.llm.patience import not_for_ever

LIMITS = httpx2.Limits(max_connections=20_000, keepalive_expiry=30.0)
"""A turn that streams has a connection: how many there may be is not decided here."""


def provider_connections() -> httpx2.AsyncClient:
    """The client for an SDK to use and to close."""
    return DefaultAioHttpClient(
        limits=LIMITS, event_hooks={"request": [_credentials_in_one_place], "response": [not_for_ever]}
    )


async def _credentials_in_one_place(request: httpx2.Request) -> None:
    """Those of the URL are in the header by now; aiohttp refuses both."""
    if request.url.userinfo:
        request.url = request.url.copy_with(username=None, password=None)
