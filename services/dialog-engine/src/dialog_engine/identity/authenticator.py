"""Finds out who makes a request, from the credential that it carries."""

import re
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from dialog_engine.errors import TooManyAttemptsError, UnauthenticatedError
from dialog_engine.identity.api_keys import ApiKeys, digest_of
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.identity.principal import Principal

NO_CREDENTIAL = "this server needs a key or a token, and the request has no valid one"
MOST_ACCEPTED = 10_000
"""How many accepted credentials are remembered; beyond that the one that was used least recently is forgotten."""


_TOKEN = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)
"""What looks like a JSON Web Token."""


class Tokens(Protocol):
    """Checks tokens."""

    async def prepare(self, token: str) -> None:
        """Fetch what is needed to check this token. Raises IdentityProviderError."""
        ...

    def verify(self, token: str) -> Principal | None:
        """Whom the token names; None when it is not valid.

        Raises:
            UnauthenticatedError: it is genuine, and has expired.
        """
        ...


class Authenticator:
    """Checks API keys and, with `tokens`, the tokens of an OpenID Connect provider.

    An address that fails too often has to wait before another credential is checked. Credentials that were accepted
    before are still accepted from there: other clients may have the same address.
    """

    def __init__(
        self,
        keys: ApiKeys,
        attempts: FailedAttempts,
        tokens: Tokens | None = None,
        *,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._keys = keys
        self._tokens = tokens
        self._attempts = attempts
        self._now = now
        self._accepted: OrderedDict[bytes, Principal | None] = OrderedDict()
        """By digest of the credential: the sender for a token, None for a key, which may be revoked at any time."""

    async def authenticate(self, credential: str, address: str) -> Principal:
        """The sender of a request with this key or token.

        Raises:
            UnauthenticatedError: it is not valid, or no longer valid.
            TooManyAttemptsError: it was not checked.
            IdentityProviderError: it was not checked, because the provider's keys cannot be fetched now.
        """
        digest = digest_of(credential)
        key, token = self._keys.find(digest), self._accepted.get(digest)
        may_be_token = not key and not token and self._tokens and _TOKEN.fullmatch(credential)
        if self._tokens and may_be_token:
            await self._tokens.prepare(credential)  # first: nothing is awaited between the two uses of `attempts`
        if digest not in self._accepted and (wait := self._attempts.wait(address)):
            raise TooManyAttemptsError(wait)
        principal = key.principal() if key else token
        if self._tokens and may_be_token:
            principal = self._tokens.verify(credential)
        if principal is None:
            self._accepted.pop(digest, None)
            self._attempts.failed(address)
            raise UnauthenticatedError(NO_CREDENTIAL)
        if principal.expires_at is not None and principal.expires_at <= self._now():
            # It was genuine, so that it is no attempt to guess.
            self._accepted.pop(digest, None)
            raise UnauthenticatedError("the key or token of the request has expired: use a new one")
        self._remember(digest, None if key else principal)
        return principal

    def _remember(self, digest: bytes, principal: Principal | None) -> None:
        self._accepted[digest] = principal
        self._accepted.move_to_end(digest)
        if len(self._accepted) > MOST_ACCEPTED:
            self._accepted.popitem(last=False)
