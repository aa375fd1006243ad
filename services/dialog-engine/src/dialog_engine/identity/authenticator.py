"""Finds out who makes a request, from the credential that it carries."""

import re
import time
from collections.abc import Callable
from typing import Protocol

from dialog_engine.chat.ports import Credentials
from dialog_engine.chat.waiting_messages import HeldReason
from dialog_engine.errors import TooManyAttemptsError, UnauthenticatedError
from dialog_engine.identity.api_keys import CREDENTIAL as API_KEY
from dialog_engine.identity.api_keys import ApiKeys, digest_of
from dialog_engine.identity.failed_attempts import FailedAttempts
from dialog_engine.identity.principal import USER, Principal
from dialog_engine.model import Turn
from plugins_contract.rights import OF_KEY

NO_CREDENTIAL = "this server needs a key or a token, and the request has no valid one"
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

    async def withdrawn(self, credential: str) -> bool:
        """Whether the key that signed the tokens of this credential is known not to be the provider's any more."""
        ...


class Users(Protocol):
    """Checks tokens that name people behind keys."""

    def of(self, key: Principal, token: str) -> Principal:
        """The person. Raises UnauthenticatedError."""
        ...


def key_of(subject: str) -> str:
    """The subject of the key behind that of a person behind it; '' for a subject that cannot be one."""
    return subject.rpartition("/")[0]


class NoCredentials(Credentials):
    """For an engine whose senders need none. It cannot say what has become of those of its earlier life."""

    async def revoked(self, credential: str) -> bool:
        return False

    async def rights(self, turn: Turn) -> tuple[str, ...] | HeldReason:
        return turn.roles


class Authenticator(Credentials):
    """Checks API keys and, with `tokens`, the tokens of an OpenID Connect provider.

    Each request is checked anew, so that a key that is revoked and a token whose signing key is withdrawn are refused.
    An address that fails too often has to wait after a wrong credential; a right one is always accepted, because other
    clients may have the same address. Neither a key nor a signature can be guessed.
    """

    def __init__(
        self,
        keys: ApiKeys,
        attempts: FailedAttempts,
        tokens: Tokens | None = None,
        *,
        users: Users | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`users` are the people behind the keys of chat pages, if these name them."""
        self._keys = keys
        self._users = users
        self._tokens = tokens
        self._attempts = attempts
        self._now = now

    async def authenticate(self, credential: str, address: str, user_token: str = "") -> Principal:
        """The sender of a request with this key or token. `user_token` names the person behind a key.

        Raises:
            UnauthenticatedError: it is not valid, or no longer valid.
            TooManyAttemptsError: it is not valid, and neither were too many others from this address.
            IdentityProviderError: it was not checked, because the provider's keys cannot be fetched now.
        """
        principal = await self._sender(credential)
        if principal is None:
            if wait := self._attempts.wait(address):
                raise TooManyAttemptsError(wait)
            self._attempts.failed(address)
            raise UnauthenticatedError(NO_CREDENTIAL)
        if principal.expires_at is not None and principal.expires_at <= self._now():
            # It was genuine, so that it is no attempt to guess.
            raise UnauthenticatedError("the key or token of the request has expired: use a new one")
        return self._behind(principal, user_token) if self._users else principal

    def _behind(self, principal: Principal, user_token: str) -> Principal:
        """The person behind a key whom the token names. A native subject that could be one of them is refused."""
        assert self._users is not None  # noqa: S101 -- narrows the type; the caller has looked
        if self._keys.has_subject(key_of(principal.subject)):
            raise UnauthenticatedError(
                f"the subject {principal.subject} could be a user behind the key of {key_of(principal.subject)}: name"
                " the subject of this key in another way"
            )
        if user_token and principal.credential.startswith(API_KEY):
            return self._users.of(principal, user_token)
        return principal

    async def revoked(self, credential: str) -> bool:
        if credential.startswith(API_KEY):
            return self._keys.of(credential) is None
        return self._tokens is not None and credential != "" and await self._tokens.withdrawn(credential)

    async def rights(self, turn: Turn) -> tuple[str, ...] | HeldReason:
        """A key gives the roles that it has now, anything else those of its sign-in until that ends."""
        roles, expires_at = turn.roles, turn.expires_at
        if turn.credential.startswith(API_KEY):
            key = self._keys.of(turn.credential)
            if key is None or key.subject not in (turn.subject, key_of(turn.subject) if self._users else ""):
                return HeldReason.CREDENTIAL_REVOKED
            sender = key.principal()
            of_key = tuple(role for role in roles if role.startswith(OF_KEY))
            roles, expires_at = (*sender.roles, *of_key), sender.expires_at
        elif not turn.key_id or await self.revoked(turn.credential):  # without a key: from before senders needed one
            return HeldReason.CREDENTIAL_REVOKED
        if expires_at is not None and expires_at <= self._now():
            return HeldReason.CREDENTIAL_EXPIRED
        return roles if USER in roles else HeldReason.FORBIDDEN

    async def _sender(self, credential: str) -> Principal | None:
        if key := self._keys.find(digest_of(credential)):
            return key.principal()
        if self._tokens and _TOKEN.fullmatch(credential):
            await self._tokens.prepare(credential)
            return self._tokens.verify(credential)
        return None
