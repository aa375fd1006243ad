"""The OpenID Connect provider: its metadata, and the keys with which it signs tokens."""

import asyncio
import logging
import time
from collections.abc import Callable, Container
from http import HTTPStatus
from typing import Any, cast
from urllib.parse import urlsplit

import httpx2
import jwt
import msgspec

from callstream_runtime.response_bounds import ACCEPT, unpack_in_steps
from callstream_runtime.visible import visible
from dialog_engine.errors import IdentityProviderError

log = logging.getLogger(__name__)

ALGORITHMS = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Only algorithms with a public key: with any other, whoever can check a token could also make one."""
REFRESH_SECONDS = 300.0
"""The age of keys at which they are fetched again, so that a key that the provider has withdrawn is not used."""
ASK_AGAIN_SECONDS = 10.0
"""The least time between two requests for keys, whatever tokens arrive, and between two for metadata."""
ANSWER_SECONDS = 5.0
METADATA_SECONDS = 86_400.0
"""The age of metadata at which it is read again."""
MAX_ANSWER_BYTES = 1_000_000
MAX_KEYS = 100
"""How many keys of the provider are read, in the event loop. Providers have less than ten."""
MAX_SHOWN = 200
"""Characters of what the provider names that are shown."""
_PUBLIC = ("kty", "crv", "x", "y", "n", "e", "alg", "kid")
"""The members of a public key. With a private exponent as well, a key is factored, which takes seconds."""


class Metadata(msgspec.Struct, frozen=True):
    """What the provider says about itself (OpenID Connect Discovery 1.0)."""

    issuer: str
    jwks_uri: str
    authorization_endpoint: str
    token_endpoint: str
    token_endpoint_auth_methods_supported: tuple[str, ...] = ("client_secret_basic",)


class IdentityProvider:
    """Knows the provider's metadata and keys. They are fetched when they are needed for the first time, or are old.

    While the provider cannot be asked, what is known stays in use.
    """

    def __init__(self, issuer: str, *, now: Callable[[], float] = time.monotonic) -> None:
        self.issuer = issuer
        self._now = now
        self._http: httpx2.AsyncClient | None = None
        self._metadata: Metadata | None = None
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._fetched_at = self._asked_at = -float("inf")
        self._fetching = asyncio.Lock()
        self._read_at = self._tried_at = -float("inf")
        self._reading = asyncio.Lock()
        self._failure = ""

    async def aclose(self) -> None:
        """Close the connections."""
        if self._http is not None:
            await self._http.aclose()
            self._http = None

    async def metadata(self) -> Metadata:
        """The metadata, which is at most a day old if it could be read again.

        Raises:
            IdentityProviderError: it cannot be read now, or is not that of the issuer.
        """
        if self._metadata_due() or (self._metadata is None and self._reading.locked()):
            async with self._reading:
                if self._metadata_due():
                    self._tried_at = self._now()
                    await self._read_metadata()
        if self._metadata is None:
            raise IdentityProviderError(self._failure)
        return self._metadata

    def _metadata_due(self) -> bool:
        now = self._now()
        return now - self._read_at >= METADATA_SECONDS and now - self._tried_at >= ASK_AGAIN_SECONDS

    async def _read_metadata(self) -> None:
        url = f"{self.issuer.rstrip('/')}/.well-known/openid-configuration"
        try:
            found = msgspec.convert(await self.ask("GET", url), Metadata)
            self._check(found)
        except msgspec.ValidationError as error:
            self._failure = f"the metadata of {self.issuer} cannot be used: {error}"
        except IdentityProviderError as error:
            self._failure = str(error)
        else:
            self._metadata, self._read_at = found, self._now()
            return
        log.warning("the metadata of the identity provider cannot be read: %s", self._failure)

    def _check(self, found: Metadata) -> None:
        if found.issuer != self.issuer:
            raise IdentityProviderError(
                f"OIDC_ISSUER is {self.issuer}, and the provider there is {_shown(found.issuer)}"
            )
        scheme = urlsplit(self.issuer).scheme
        for endpoint in (found.jwks_uri, found.authorization_endpoint, found.token_endpoint):
            if not endpoint.startswith(f"{scheme}://"):
                raise IdentityProviderError(f"{_shown(endpoint)} must be {scheme}, as OIDC_ISSUER is")

    async def prepare(self, kid: str | None) -> None:
        """Fetch the keys if this one is not known, or if they are old, unless they were asked for a moment ago.

        Raises:
            IdentityProviderError: no key is known, and none can be fetched now.
        """
        if self._outdated(kid) or (self.key(kid) is None and self._fetching.locked()):
            async with self._fetching:
                if self._outdated(kid):
                    self._asked_at = self._now()
                    await self._fetch_keys()
        if not self._keys:
            raise IdentityProviderError("the keys of the identity provider cannot be fetched now: try again later")

    def key(self, kid: str | None) -> jwt.PyJWK | None:
        """A key that is known. A token without a key id can be checked if the provider has one key only."""
        if kid is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(kid)

    async def withdrawn(self, kid: str) -> bool:
        """Whether the provider does not publish this key any more. False while it cannot be asked."""
        try:
            await self.prepare(kid)
        except IdentityProviderError:
            return False
        return kid not in self._keys and self._fetched_at >= self._asked_at

    async def ask(
        self, method: str, url: str, *, statuses: Container[int] = (HTTPStatus.OK,), **options: Any
    ) -> dict[str, Any]:
        """The JSON object that the provider answers with, with one of these statuses. Redirects are not followed.

        Raises:
            IdentityProviderError: there is none. The text contains neither what was sent nor what was answered.
        """
        http = self._http or await self._connected()
        try:
            async with asyncio.timeout(ANSWER_SECONDS), http.stream(method, url, **options) as response:
                body = b""
                async for part in response.aiter_bytes():
                    body += part
                    if len(body) > MAX_ANSWER_BYTES:
                        raise IdentityProviderError(f"{_shown(url)} answered with more than {MAX_ANSWER_BYTES} bytes")
            if response.status_code not in statuses:
                raise IdentityProviderError(f"{_shown(url)} answered with status {response.status_code}")
            answer = msgspec.json.decode(body)
        except (httpx2.HTTPError, httpx2.InvalidURL, OSError, TimeoutError) as error:
            raise IdentityProviderError(f"{_shown(url)} cannot be asked now: {type(error).__name__}") from None
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            answer = None
        if not isinstance(answer, dict):
            raise IdentityProviderError(f"{_shown(url)} answered with something else than a JSON object")
        return cast("dict[str, Any]", answer)

    async def _connected(self) -> httpx2.AsyncClient:
        certificates = await asyncio.to_thread(httpx2.create_ssl_context)  # it reads them: 25 ms
        if self._http is None:  # another request may have come first
            self._http = httpx2.AsyncClient(
                verify=certificates,
                timeout=ANSWER_SECONDS,
                follow_redirects=False,
                headers=ACCEPT,
                event_hooks={"response": [unpack_in_steps]},
            )
        return self._http

    def _outdated(self, kid: str | None) -> bool:
        if self._now() - self._asked_at < ASK_AGAIN_SECONDS:
            return False
        return self.key(kid) is None or self._now() - self._fetched_at >= REFRESH_SECONDS

    async def _fetch_keys(self) -> None:
        try:
            answer = await self.ask("GET", (await self.metadata()).jwks_uri)
            self._keys = dict(_usable(answer.get("keys")))
            self._fetched_at = self._now()
        except IdentityProviderError as error:
            log.warning("the keys of the identity provider cannot be fetched: %s", error)


def _usable(keys: object) -> list[tuple[str | None, jwt.PyJWK]]:
    """MAX_KEYS public keys for signatures, by key id. Others, and those that cannot be read, are left out."""
    found: list[tuple[str | None, jwt.PyJWK]] = []
    for each in cast("list[object]", keys)[:MAX_KEYS] if isinstance(keys, list) else []:
        if not isinstance(each, dict):
            continue
        data = cast("dict[str, Any]", each)
        public = {name: value for name in _PUBLIC if (value := data.get(name)) is not None}
        if data.get("use", "sig") != "sig" or not all(isinstance(value, str) for value in public.values()):
            continue
        try:
            key = jwt.PyJWK.from_dict(public)
        except (jwt.PyJWTError, LookupError, ValueError, TypeError, NotImplementedError):
            continue
        if key.algorithm_name in ALGORITHMS:
            found.append((key.key_id, key))
    return found


def _shown(text: str) -> str:
    """What a provider has named, for logs and users."""
    return visible(text[:MAX_SHOWN])
