"""The sign-in of people on the page: the authorization code flow of OpenID Connect, with PKCE."""

import hmac
import secrets
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from http import HTTPStatus
from typing import Any
from urllib.parse import quote_plus, urlencode, urlsplit

from dialog_engine.config.identity import SIGN_IN_CALLBACK
from dialog_engine.errors import IdentityProviderError, UnauthenticatedError
from dialog_engine.identity.page_sessions import MAX_COOKIE_CHARS, PageSession, PendingSignIn, Seal
from dialog_engine.identity.principal import OPERATOR, USER, Principal
from dialog_engine.identity.provider import IdentityProvider
from dialog_engine.identity.tokens import TokenVerifier

PAGE = "page"
"""The name of every session on the page in the audit."""
SIGN_IN_SECONDS = 600
"""How long the provider may take to answer."""


@dataclass(frozen=True, slots=True)
class Client:
    """The engine as the provider knows it. `public_url` is its address in browsers."""

    client_id: str
    client_secret: str | None
    public_url: str
    scopes: str

    @property
    def redirect_uri(self) -> str:
        """Where the provider sends the browser back to."""
        return self.public_url.rstrip("/") + SIGN_IN_CALLBACK


class SignIn:
    """Signs people in. Both values that a browser keeps are sealed, so that any engine with the same key reads them."""

    def __init__(
        self,
        provider: IdentityProvider,
        verifier: TokenVerifier,
        client: Client,
        seal: Seal,
        *,
        session_seconds: float,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._provider = provider
        self._verifier = verifier
        self._client = client
        self._seal = seal
        self._now = now
        self.session_seconds = round(session_seconds)
        parts = urlsplit(client.public_url)
        self.origin = f"{parts.scheme}://{parts.netloc}"
        """The origin of the page."""
        self.secure = parts.scheme == "https"
        """Whether browsers may send the cookies over HTTPS only."""
        prefix = "__Host-" if self.secure else ""  # with it no other host can set a cookie
        self.cookie = f"{prefix}callstream"
        """The name of the session's cookie."""
        self.pending_cookie = f"{prefix}callstream-sign-in"
        """The name of the cookie of a sign-in that the provider has not answered yet."""

    async def begin(self) -> tuple[str, str]:
        """The address at the provider to send the browser to, and the sealed sign-in that it keeps meanwhile.

        Raises:
            IdentityProviderError: the provider cannot be asked now.
        """
        metadata = await self._provider.metadata()
        state, nonce, verifier = (secrets.token_urlsafe(32) for _ in range(3))
        query = {
            "response_type": "code",
            "client_id": self._client.client_id,
            "redirect_uri": self._client.redirect_uri,
            "scope": self._client.scopes,
            "state": state,
            "nonce": nonce,
            "code_challenge": urlsafe_b64encode(sha256(verifier.encode()).digest()).rstrip(b"=").decode(),
            "code_challenge_method": "S256",
        }
        separator = "&" if "?" in metadata.authorization_endpoint else "?"
        pending = PendingSignIn(state, nonce, verifier, self._now() + SIGN_IN_SECONDS)
        return f"{metadata.authorization_endpoint}{separator}{urlencode(query)}", self._seal.seal(pending)

    async def finish(self, sealed: str, *, code: str, state: str, issuer: str | None) -> tuple[str, str]:
        """The subject with which the provider has answered, and the sealed session.

        Raises:
            UnauthenticatedError: this browser has not begun the sign-in, the provider does not accept the code, or its
                answer is not valid.
            IdentityProviderError: the provider cannot be asked now.
        """
        pending = self._seal.unseal(sealed, PendingSignIn)
        if pending is None or not hmac.compare_digest(pending.state.encode(), state.encode()):
            raise UnauthenticatedError("this sign-in was not begun in this browser, or took too long: begin it again")
        if issuer is not None and issuer != self._provider.issuer:
            raise UnauthenticatedError("the answer is of another identity provider: begin the sign-in again")
        token = await self._id_token(code, pending.verifier)
        await self._verifier.prepare(token)
        principal = self._verifier.verify(token, nonce=pending.nonce)
        if principal is None:
            raise UnauthenticatedError("the identity provider's answer is not valid: begin the sign-in again")
        ends_at = self._now() + self.session_seconds
        session = PageSession(principal.subject, principal.name, principal.roles, ends_at)
        text = self._seal.seal(session)
        if len(text) > MAX_COOKIE_CHARS:
            kept = tuple(role for role in principal.roles if role in (USER, OPERATOR))
            text = self._seal.seal(PageSession(session.subject, session.name, kept, session.ends_at))
        return session.subject, text

    def sender(self, sealed: str) -> Principal | None:
        """Whose session a cookie has; None when it is not valid, or has ended."""
        session = self._seal.unseal(sealed, PageSession)
        return session and Principal(session.subject, session.roles, session.name, session.ends_at, PAGE)

    async def _id_token(self, code: str, verifier: str) -> str:
        metadata, client = await self._provider.metadata(), self._client
        form = {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": client.redirect_uri,
            "code_verifier": verifier,
        }
        options: dict[str, Any] = {"data": form}
        methods = metadata.token_endpoint_auth_methods_supported
        if client.client_secret and "client_secret_basic" in methods:
            # Encoded as RFC 6749, section 2.3.1, says.
            options["auth"] = (quote_plus(client.client_id), quote_plus(client.client_secret))
        else:
            form["client_id"] = client.client_id
            if client.client_secret:
                form["client_secret"] = client.client_secret
        statuses = (HTTPStatus.OK, HTTPStatus.BAD_REQUEST)
        answer = await self._provider.ask("POST", metadata.token_endpoint, statuses=statuses, **options)
        if answer.get("error") == "invalid_grant":  # RFC 6749, section 5.2: of the code, as it came from the browser
            raise UnauthenticatedError("the identity provider does not accept this sign-in: begin it again")
        token = answer.get("id_token")
        if not isinstance(token, str):
            raise IdentityProviderError(f"{metadata.token_endpoint} answered without an ID token")
        return token
