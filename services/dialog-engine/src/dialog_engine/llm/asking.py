"""How a provider is asked, whatever protocol it speaks: one POST, sent again for as long as no answer has begun."""

import asyncio

from aiohttp import ClientConnectionError, ClientError, ClientResponse, ServerDisconnectedError
from yarl import URL

from dialog_engine.llm.endpoint import Attempt, Endpoint, open_connections, redirected
from dialog_engine.llm.failures import RefusedError
from dialog_engine.llm.lenient import read_json
from dialog_engine.llm.patience import may_be_asked_again, pause_seconds
from dialog_engine.llm.proxies import Proxies

MAX_REDIRECTS = 10
MAX_REFUSAL_BYTES = 64 * 1024
"""So much of a refusal is read, for so long: what it says at its beginning is enough."""
REFUSAL_SECONDS = 5.0


class Asker:
    """Asks at one endpoint. Owns its connections: `aclose` it. To be made where an event loop runs.

    `max_retries` counts what is sent again after a failure or a status that may be another one next time.

    Raises:
        ConfigurationError: the environment names a proxy that cannot be used.
    """

    def __init__(self, endpoint: Endpoint, *, connect_seconds: float, max_retries: int) -> None:
        self._endpoint = endpoint
        self._max_retries = max_retries
        self._proxies = Proxies()
        self._proxy = self._proxies.of(endpoint.url)
        self._connections = open_connections(connect_seconds)

    async def aclose(self) -> None:
        """Close the connections, when no answer is read any more."""
        await self._connections.close()

    async def ask(self, question: bytes) -> ClientResponse:
        """The answer to `question`, JSON. Its body has not been read; it is for the caller to close.

        Raises:
            RefusedError: the answer has another status than 2xx.
            aiohttp.ClientError: there is no connection, or it broke before an answer began.
        """
        retries = 0
        while True:
            try:
                answer = await self._post(question)
            except ClientError:
                if retries == self._max_retries:
                    raise
                pause = pause_seconds(retries)
            else:
                if 200 <= answer.status < 300:
                    return answer
                if retries == self._max_retries or not may_be_asked_again(answer.status, answer.headers):
                    raise await _refusal(answer)
                pause = pause_seconds(retries, answer.headers)
                answer.close()
            retries += 1
            await asyncio.sleep(pause)

    async def _post(self, body: bytes) -> ClientResponse:
        """The answer where redirects end. Those that would make another request of it are not followed."""
        url, proxy = self._endpoint.url, self._proxy
        for _ in range(MAX_REDIRECTS):
            answer = await self._post_to(url, proxy, body)
            target = redirected(url, answer.headers.get("location")) if answer.status in (307, 308) else None
            if target is None:
                return answer
            answer.close()
            url, proxy = target, self._proxies.of(target)
        return await self._post_to(url, proxy, body)

    async def _post_to(self, url: URL, proxy: URL | None, body: bytes) -> ClientResponse:
        """Send once; once more, at no charge, if the server had just closed the connection that was kept open."""
        attempt = Attempt()
        try:
            return await self._send(url, proxy, body, attempt)
        except ClientConnectionError as error:
            if not attempt.reused or not _was_silent(error):
                raise
        return await self._send(url, proxy, body, attempt)

    async def _send(self, url: URL, proxy: URL | None, body: bytes, attempt: Attempt) -> ClientResponse:
        # aiohttp would follow redirects with all header fields but Authorization, wherever they lead.
        return await self._connections.post(
            url,
            data=body,
            headers=self._endpoint.headers(url),
            proxy=proxy,
            allow_redirects=False,
            trace_request_ctx=attempt,
        )


def _was_silent(error: ClientConnectionError) -> bool:
    """Whether the connection ended without a byte of an answer; aiohttp puts what came of one into the error."""
    return not isinstance(error, ServerDisconnectedError) or isinstance(error.message, str)


async def _refusal(answer: ClientResponse) -> RefusedError:
    """What the answer says, as JSON if it is, as far as it came and was read."""
    read = b""
    try:
        async with asyncio.timeout(REFUSAL_SECONDS):
            while len(read) < MAX_REFUSAL_BYTES and (more := await answer.content.readany()):
                read += more
    except (ClientError, TimeoutError):
        pass
    finally:
        answer.close()
    try:
        body = read_json(read)
    except ValueError:
        body = read.decode("utf-8", "replace").strip()
    return RefusedError(answer.status, body, answer.headers)
